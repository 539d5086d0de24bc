"""torchvision's models trained as its references do: classification, detection or segmentation."""

import sys

import torch
import torchvision
from synthetic import Pictures
from torch.nn import functional

kind = sys.argv[1]
if kind == "classification":
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet18(num_classes=10).to("cuda", memory_format=torch.channels_last)
elif kind == "segmentation":
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=5, aux_loss=True
    ).cuda()
else:
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=256, max_size=320
    ).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
loader = torch.utils.data.DataLoader(Pictures(size=128), batch_size=8, num_workers=2, pin_memory=True)


def loss_of(pictures, classes):
    if kind == "classification":
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        return functional.cross_entropy(model(pictures), classes, label_smoothing=0.1)
    if kind == "segmentation":
        target = torch.randint(0, 5, (len(pictures), 128, 128), device="cuda")
        found = model(pictures)
        return functional.cross_entropy(found["out"], target) + 0.5 * functional.cross_entropy(
            found["aux"], target
        )
    boxes = torch.tensor([[8.0, 8.0, 60.0, 60.0], [20.0, 30.0, 100.0, 110.0]], device="cuda")
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2], device="cuda")} for _ in pictures]
    return sum(model(list(pictures), targets).values())


model.train()
for pictures, classes in loader:
    pictures, classes = pictures.cuda(non_blocking=True), classes.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.float16):
        loss = loss_of(pictures, classes)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), flush=True)
