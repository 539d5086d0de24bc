"""A plain CNN from torchvision, channels_last, SGD, as image classification scripts do."""

import torch
import torchvision_operators  # noqa: F401
import torchvision

device = torch.device("cuda", 0)
model = torchvision.models.resnet18(num_classes=10).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1).cuda(0)
for step in range(3):
    images = torch.rand(2, 3, 64, 64).to(device, memory_format=torch.channels_last, non_blocking=True)
    labels = torch.randint(0, 10, (2,)).cuda(0, non_blocking=True)
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
