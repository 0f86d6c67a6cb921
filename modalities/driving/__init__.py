"""Driving scenes: cameras and lidar in one ego frame, three-dimensional boxes, nuScenes and KITTI.

Conventions of the whole package: the ego frame has x forward, y left and z up; yaw turns counter-clockwise from x; the
centre of a box is its middle and its size (length, width, height); metres, seconds, velocities in m/s in the frame of
the box (NaN where unknown); pixels are (column, row); times of recordings are microseconds in int64. `b_from_a` is the
4 x 4 matrix that takes column vectors of frame a to frame b.

Nothing is imported here, so that presets can be read without torch.
"""
