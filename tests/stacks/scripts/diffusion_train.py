"""diffusers: an unconditional UNet with EMA, LoRA on a conditioned UNet, or a Flux transformer."""

import sys

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DConditionModel, UNet2DModel
from diffusers.training_utils import EMAModel
from torch.nn import functional

kind = sys.argv[1]
accelerator = Accelerator(mixed_precision="bf16")
scheduler = DDPMScheduler(num_train_timesteps=1000)
average = None
if kind == "unet":
    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    average = EMAModel(model.parameters(), model_cls=UNet2DModel, model_config=model.config)
    average.to(accelerator.device)
elif kind == "lora":
    from peft import LoraConfig

    model = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        attention_head_dim=8,
    )
    model.requires_grad_(False)
    model.add_adapter(LoraConfig(r=4, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    model.enable_gradient_checkpointing()
else:
    from diffusers import FluxTransformer2DModel

    scheduler = FlowMatchEulerDiscreteScheduler()
    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=64,
        pooled_projection_dim=32,
        axes_dims_rope=(8, 12, 12),
    )
optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], 1e-4)
data = [torch.randn(3 if kind == "unet" else 4, 32, 32) for _ in range(48)]
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()


def loss_of(clean):
    noise = torch.randn_like(clean)
    times = torch.randint(0, 1000, (len(clean),), device=clean.device)
    if kind == "flux":
        text = torch.randn(len(clean), 32, 64, device=clean.device)
        latents = torch.randn(len(clean), 256, 16, device=clean.device)
        found = model(
            latents,
            encoder_hidden_states=text,
            pooled_projections=torch.randn(len(clean), 32, device=clean.device),
            timestep=times / 1000,
            img_ids=torch.zeros(256, 3, device=clean.device),
            txt_ids=torch.zeros(32, 3, device=clean.device),
        ).sample
        return functional.mse_loss(found.float(), torch.randn_like(latents))
    noisy = scheduler.add_noise(clean, noise, times)
    if kind == "unet":
        return functional.mse_loss(model(noisy, times).sample.float(), noise)
    text = torch.randn(len(clean), 16, 64, device=clean.device)
    return functional.mse_loss(model(noisy, times, text).sample.float(), noise)


for clean in loader:
    accelerator.backward(loss_of(clean))
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if average is not None:
        average.step(model.parameters())
