"""What was asked: requests as traces, read, recorded and generated."""
