"""A server of images: `worker` decodes, `app` speaks HTTP."""
