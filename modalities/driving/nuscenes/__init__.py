"""nuScenes: its tables, key frames, submissions and detection metrics."""
