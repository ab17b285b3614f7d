"""What is asked for: a parallel plan, the framework that runs it, its pipeline schedule, and the job that they make."""
