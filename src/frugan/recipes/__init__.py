"""Published configurations, one TOML file each."""
