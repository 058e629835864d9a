"""One module per subject; every scenario runs under every Python SDK version, sync and async."""
