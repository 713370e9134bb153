"""Where routers have sent a job."""
