"""What detectors of every modality share: feature pyramids, the YOLOv10 head, decoded detections and the loss.

Nothing is imported here, so that sizes can be counted without torch.
"""
