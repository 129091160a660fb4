"""Jobs of the pipeline as relational steps: what they read, the SQL, the kernels, and what the driver publishes."""
