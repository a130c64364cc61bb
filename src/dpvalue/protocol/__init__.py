"""What crosses between a coordinator and its parties: jobs, requests, releases, as files that can be signed."""
