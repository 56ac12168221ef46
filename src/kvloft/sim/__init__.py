"""What if: the pool, the policies and the cascade that serve, driven by traces."""
