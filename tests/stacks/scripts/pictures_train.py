"""Training loops of picture libraries: timm, segmentation_models_pytorch, MONAI, fastai, ignite."""

import sys

import torch
from synthetic import Pictures

kind = sys.argv[1]


def loop(model, loss_of, batches, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    model.train()
    for batch in batches:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model, *(part.cuda() for part in batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)


def timm_vit():
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    torch.backends.cudnn.benchmark = True
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, drop_path_rate=0.1).cuda()
    average, mixup, criterion = ModelEmaV3(model), Mixup(0.8, num_classes=10), SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.05)

    def loss_of(model, pictures, classes):
        pictures, target = mixup(pictures, classes)
        average.update(model)
        return criterion(model(pictures), target)

    loop(model, loss_of, torch.utils.data.DataLoader(Pictures(224, count=64), batch_size=8), optimizer)


def segmentation_models():
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=4).cuda()
    dice = smp.losses.DiceLoss("multiclass")
    batches = [(torch.rand(4, 3, 128, 128), torch.randint(0, 4, (4, 128, 128))) for _ in range(6)]
    loop(model, lambda model, pictures, masks: dice(model(pictures).float(), masks), batches)


def monai_unet():
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(3, 1, 3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2).cuda()
    dice = DiceCELoss(to_onehot_y=True, softmax=True)
    batches = [(torch.rand(2, 1, 64, 64, 64), torch.randint(0, 3, (2, 1, 64, 64, 64))) for _ in range(6)]
    loop(model, lambda model, volumes, masks: dice(model(volumes), masks), batches)
    model.eval()
    with torch.no_grad():
        sliding_window_inference(torch.rand(1, 1, 96, 96, 96).cuda(), (64, 64, 64), 2, model)


def fastai_learner():
    from fastai.vision.all import CrossEntropyLossFlat, DataLoader, DataLoaders, Learner, xresnet18

    data = DataLoaders(
        DataLoader(Pictures(64, count=64), bs=8), DataLoader(Pictures(64, count=16), bs=8), device="cuda"
    )
    learner = Learner(data, xresnet18(n_out=10), loss_func=CrossEntropyLossFlat())
    with learner.no_bar():
        learner.to_fp16().fit_one_cycle(1, 1e-3)


def ignite_engine():
    import torchvision
    from ignite.engine import create_supervised_trainer

    model = torchvision.models.mobilenet_v3_small(num_classes=10).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = create_supervised_trainer(
        model, optimizer, torch.nn.CrossEntropyLoss(), "cuda", amp_mode="amp", scaler=True
    )
    trainer.run(torch.utils.data.DataLoader(Pictures(64, count=64), batch_size=8), max_epochs=1)


kinds = {
    "timm": timm_vit,
    "smp": segmentation_models,
    "monai": monai_unet,
    "fastai": fastai_learner,
    "ignite": ignite_engine,
}
kinds[kind]()
