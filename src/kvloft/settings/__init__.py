"""What `--kv-transfer-config` may say: read by the engine's side and by `kvloft config` from the same tables."""
