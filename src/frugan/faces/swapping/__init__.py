"""`frugan swap`: faces of frames replaced by what a face model makes of them."""
