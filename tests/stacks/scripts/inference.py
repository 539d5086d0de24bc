"""Scripts without an optimizer: pictures through a network, tokens generated, an engine that serves."""

import sys

import torch

kind = sys.argv[1]
if kind == "resnet":
    import torchvision

    model = torchvision.models.resnet18().cuda().eval()
    with torch.inference_mode():
        for _ in range(5):
            model(torch.randn(16, 3, 224, 224, device="cuda"))
elif kind == "generate":
    from synthetic import llama_config
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM._from_config(llama_config(), dtype=torch.bfloat16).cuda().eval()
    model.generate(torch.randint(5, 1000, (4, 64), device="cuda"), max_new_tokens=32, do_sample=False)
elif kind == "diffusers":
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = DDPMPipeline(model, DDPMScheduler()).to("cuda")
    pipeline(batch_size=4, num_inference_steps=10, output_type="np")
elif kind == "vllm":
    from vllm import LLM, SamplingParams

    engine = LLM("model", load_format="dummy", max_model_len=512, gpu_memory_utilization=0.5)
    engine.generate(["the quick fox"] * 4, SamplingParams(max_tokens=16))
elif kind == "sglang":
    import sglang

    if __name__ == "__main__":
        engine = sglang.Engine(model_path="model", load_format="dummy", mem_fraction_static=0.5)
        engine.generate(["the quick fox"] * 4, {"max_new_tokens": 16})
        engine.shutdown()
