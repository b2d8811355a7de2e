// A browser starts no worker from a page that was opened as a file. There, the search's worker runs in a hidden frame, with
// copies of the same messages, as it changes what it is sent.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.onmessage = this.onerror = this.onmessageerror = null
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.tell("message", { data: structuredClone(data) })
      const script = inside.document.createElement("script")
      script.src = new URL(address, location.href).href
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      }
      script.onerror = () => this.tell("error", { data: null })
      inside.document.body.appendChild(script)
    }

    tell(kind, about) {
      const event = new MessageEvent(kind, about)
      this[`on${kind}`]?.(event)
      this.dispatchEvent(event)
    }

    postMessage(data) {
      const sent = structuredClone(data)
      if (this.waiting) this.waiting.push(sent)
      else setTimeout(() => this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data: sent })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
