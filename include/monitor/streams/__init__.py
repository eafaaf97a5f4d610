"""What the streams page and the metrics show of a stream: its lag in offsets and seconds, its state in a sentence."""
