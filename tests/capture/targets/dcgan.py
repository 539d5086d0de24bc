"""Two optimizers, .cuda() everywhere, a generator on the device, as GAN tutorials do."""

import torch
import torch.nn as nn

torch.manual_seed(999)
torch.cuda.manual_seed_all(999)
noise_generator = torch.Generator(device="cuda").manual_seed(1)
netG = nn.Sequential(
    nn.ConvTranspose2d(16, 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
netD = nn.Sequential(
    nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4, 1, 0), nn.Sigmoid()
).cuda()
criterion = nn.BCELoss().cuda()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.RMSprop(netG.parameters(), lr=2e-4, momentum=0.5)
for i in range(20):
    real = torch.rand(8, 3, 8, 8).cuda()
    netD.zero_grad()
    label = torch.full((8,), 1.0, device="cuda")
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    noise = torch.randn(8, 16, 1, 1, device="cuda", generator=noise_generator)
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad(set_to_none=False)
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    print("[%d] Loss_D: %.4f Loss_G: %.4f" % (i, (errD_real + errD_fake).item(), errG.item()))
