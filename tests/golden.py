"""The pair of logits that the golden numbers belong to: one position, four tokens."""

import torch

STUDENT = torch.tensor([[[1.0, 2.0, 3.0, -1.0]]], dtype=torch.float64)
TEACHER = torch.tensor([[[3.0, 1.0, 0.5, 0.0]]], dtype=torch.float64)
