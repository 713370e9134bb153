"""Which backend routers have sent a job to."""
