"""What runs programs: servers of ours, and the services of others."""
