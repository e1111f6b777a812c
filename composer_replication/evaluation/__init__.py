"""Evaluation on data that training has not seen: means with intervals, paired comparisons, and a check for overlap."""
