"""Networks as others write them, for fsdpd.export, each with the shape of a sample (of tokens the vocabulary
besides); and modules that are refused. They run with PyTorch 1.13 and 2."""

import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, self.up(x)], dim=1))


class UNet(nn.Module):
    """Trained as an autoencoder: batch norms need classes."""

    def __init__(self):
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down = nn.ModuleList([DoubleConv(8, 16), DoubleConv(16, 16)])
        self.up = nn.ModuleList([Up(32, 8), Up(16, 8)])
        self.outc = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for layer in self.down:
            skips.append(layer(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for layer in self.up:
            x = layer(x, skips.pop())
        return self.outc(x)


class VAE(nn.Module):
    """pytorch/examples' vae, with its noise."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 20)

    def forward(self, x):
        hidden = F.relu(self.fc1(x))
        mean, log_variance = self.fc21(hidden), self.fc22(hidden)
        std = torch.exp(0.5 * log_variance)
        z = mean + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))


class Tagger(nn.Module):
    """An LSTM tagger."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.hidden2tag = nn.Linear(16, 5)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.hidden2tag(hidden)


class CLIP(nn.Module):
    """Two towers."""

    def __init__(self):
        super().__init__()
        self.visual, self.text = nn.Linear(24, 8), nn.Embedding(40, 8)
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.6592)

    def forward(self, image, text):
        image, text = self.visual(image.flatten(1)), self.text(text).mean(1)
        image, text = image / image.norm(dim=-1, keepdim=True), text / text.norm(dim=-1, keepdim=True)
        return self.logit_scale.exp() * image @ text.t()


class AttentionBlock(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        batch, channels, height, width = x.shape
        y = self.norm(x).view(batch, channels, height * width).permute(0, 2, 1)
        q, k, v = self.qkv(y).chunk(3, dim=-1)
        split = lambda z: z.view(batch, height * width, self.heads, channels // self.heads).transpose(1, 2)
        q, k, v = split(q), split(k), split(v)
        weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * (channels // self.heads) ** -0.5, dim=-1)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(batch, height * width, channels)
        return x + self.proj(y).permute(0, 2, 1).reshape(batch, channels, height, width)


class DiffusionBlock(nn.Module):
    """A diffusion U-Net's residual block with attention; the embedding of the time is made from the input's mean."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm1, self.conv1 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.time_emb = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.norm2, self.conv2 = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.attention = AttentionBlock(16, 2)
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        x = self.stem(x)
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time_emb(x.mean(dim=(2, 3)))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.out(self.attention(x + h))


class GCN(nn.Module):
    """Graph convolutions over one graph: adjacency @ nodes."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        edges = (torch.rand(9, 9, generator=generator) < 0.3).float() + torch.eye(9)
        self.register_buffer("adjacency", edges / edges.sum(1, keepdim=True))
        self.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12)])
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(layer(torch.matmul(self.adjacency, x)), 0.1)
        return self.head(x.sum(dim=1))


class Bottleneck(nn.Module):
    def __init__(self, inputs, outputs, stride, groups):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv3, self.bn3 = nn.Conv2d(outputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Bottleneck(8, 16, 1, 4), Bottleneck(16, 16, 1, 4))
        self.layer2 = nn.Sequential(Bottleneck(16, 32, 2, 4), Bottleneck(32, 32, 1, 4))
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return self.fc(x)


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expand, activation):
        super().__init__()
        hidden = inputs * expand
        self.residual = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            activation(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            activation(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True)),
            InvertedResidual(8, 12, 1, 2, nn.ReLU6),
            InvertedResidual(12, 12, 1, 2, nn.ReLU6),
            InvertedResidual(12, 16, 2, 2, nn.Hardswish),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_mix = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel_mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class MLPMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, kernel_size=4, stride=4)
        self.blocks = nn.ModuleList([MixerBlock(9, 16) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


class TabularBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.attention_norm(x)
        batch, tokens, width = y.shape
        q, k, v = (
            part(y).reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        weights = F.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.ffn(self.ffn_norm(x))


class TabularTransformer(nn.Module):
    """FT-Transformer: every number of a row is a token."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(7, 12)), nn.Parameter(torch.randn(7, 12))
        self.cls = nn.Parameter(torch.randn(1, 1, 12))
        self.blocks = nn.ModuleList([TabularBlock(12, 3) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.weight * x[:, :, None] + self.bias
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, 0])))


# Of networks that are trained otherwise.
LOSSES = {"unet": "mse_loss(output, x)", "vae": "mse_loss(output, x)"}

# The class, the shape of a sample, and the vocabulary of tokens. Of several inputs each has a shape, and text is tokens.
NETWORKS = {
    "unet": (UNet, (3, 16, 12), 0),
    "vae": (VAE, (20,), 0),
    "tagger": (Tagger, (11,), 40),
    "clip": (CLIP, {"image": (24,), "text": (6,)}, 40),
    "diffusion": (DiffusionBlock, (3, 8, 6), 0),
    "gcn": (GCN, (9, 6), 0),
    "resnext": (ResNeXt, (3, 12, 12), 0),
    "mobilenet": (MobileNet, (3, 16, 16), 0),
    "mixer": (MLPMixer, (3, 12, 12), 0),
    "tabular": (TabularTransformer, (7,), 0),
}


class Changed(nn.Module):
    """A view of what is changed in its place."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        z = y.view(-1, 2, 2)
        y.mul_(2)
        return z.flatten(1)


class Named(nn.Module):
    """A module of a function's name that does something else, and one that does the same."""

    def __init__(self):
        super().__init__()
        self.relu, self.exp = nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x):
        return torch.exp(self.exp(torch.relu(x)))


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc.register_forward_hook(lambda module, inputs, output: output * 2)

    def forward(self, x):
        return self.fc(x)


class Mixed(nn.Module):
    """What joins samples."""

    def forward(self, x):
        y = x - x.mean(0)
        y = y + (x @ x.t()).sum(1, keepdim=True)
        return torch.cat([y, y])


class Borrowed(nn.Module):
    """A layer's weight outside of it, and a constant."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) @ self.fc.weight + torch.tensor([1.0, 2, 3, 4])


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        return self.conv(x)


class Evaluated(nn.Module):
    """A layer that never trains, part of the forward pass without gradients, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm2d(1), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        y = self.norm(x)
        with torch.no_grad():
            z = self.fc(y)
        return self.fc(y + z) * self.scale


# Each is refused.
REFUSALS = {
    "changed": (Changed, (4,), 0),
    "named": (Named, (4,), 0),
    "hooked": (Hooked, (4,), 0),
    "mixed": (Mixed, (4,), 0),
    "borrowed": (Borrowed, (4,), 0),
    "padded": (Padded, (1, 4, 4), 0),
    "evaluated": (Evaluated, (1, 4, 4), 0),
}


# Networks of other inputs.


class M5(nn.Module):
    """The keywords of PyTorch's tutorial on speech, and a batch norm of rows."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.pool1 = nn.Conv1d(2, 8, 5, stride=2, bias=False), nn.BatchNorm1d(8), nn.MaxPool1d(2)
        self.conv2, self.bn2, self.pool2 = nn.Conv1d(8, 12, 3, 1, 1, bias=False), nn.BatchNorm1d(12), nn.AvgPool1d(2)
        self.fc1, self.bn3, self.fc2 = nn.Linear(12, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 6)

    def forward(self, x):
        x = self.pool1(F.relu(self.bn1(self.conv1(x))))
        x = self.pool2(F.relu(self.bn2(self.conv2(x))))
        x = F.avg_pool1d(x, x.shape[-1])
        x = F.relu(self.bn3(self.fc1(x.permute(0, 2, 1)[:, 0])))
        return F.log_softmax(self.fc2(x), dim=1)


class Sentiment(nn.Module):
    """The last states of a stacked GRU in both directions, and of an LSTM over its results."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 10)
        self.gru = nn.GRU(10, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.lstm = nn.LSTM(16, 6, batch_first=True)
        self.fc = nn.Linear(22, 3)

    def forward(self, tokens):
        output, hidden = self.gru(self.embedding(tokens))
        _, (last, _) = self.lstm(output)
        return self.fc(torch.cat([hidden[-2], hidden[-1], last.squeeze(0)], dim=1))


class Encoder(nn.Module):
    """nn.TransformerEncoder, and attention by itself."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(12, 3)

    def forward(self, tokens):
        x = self.encoder(self.embedding(tokens))
        y, _ = self.attention(x, x, x)
        return self.fc((x + y).mean(1))


class States(nn.Module):
    """States of an LSTM that a model file does not have."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        _, (hidden, cell) = self.lstm(x)
        return hidden[0] + cell[-1]


class Masked(nn.Module):
    """Attention with a mask of its own, and over another tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(4, 2, batch_first=True)
        self.second = nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("mask", torch.ones(5, 5).triu(1).bool(), persistent=False)

    def forward(self, x):
        y = self.first(x, x, x, attn_mask=self.mask)[0]
        return self.second(x, y, y)[0]


NETWORKS["m5"] = (M5, (2, 40), 0)
NETWORKS["sentiment"] = (Sentiment, (7,), 30)
NETWORKS["encoder"] = (Encoder, (7,), 30)
REFUSALS["states"] = (States, (5, 4), 0)
REFUSALS["masked"] = (Masked, (5, 4), 0)


class TextCNN(nn.Module):
    """Kim's convolutions over words: the largest of every channel."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.convs = nn.ModuleList([nn.Conv1d(8, 6, size) for size in (2, 3)])
        self.fc = nn.Linear(20, 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        pooled = [F.relu(conv(x.transpose(1, 2))).max(dim=2)[0] for conv in self.convs]
        most = torch.amax(x, dim=1, keepdim=True).clamp(min=0).squeeze(1)
        return self.fc(torch.cat(pooled + [most], dim=1))


NETWORKS["textcnn"] = (TextCNN, (9,), 30)


class Decoder(nn.Module):
    """A generator of images: transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 48)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(8, 6, kernel_size=4, stride=2, padding=1, bias=False),
            nn.ReLU(True),
            nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1, groups=2),
            nn.ReLU(True),
        )
        self.out = nn.ConvTranspose2d(4, 3, (3, 1), padding=(1, 0), dilation=1)

    def forward(self, x):
        x = self.fc(x).view(-1, 8, 2, 3)
        return torch.sigmoid(self.out(self.up(x)))


NETWORKS["decoder"] = (Decoder, (5,), 0)


class Einsum(nn.Module):
    """Attention, and products with matrices of its own, by einsum."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.w, self.mix, self.head = (nn.Parameter(torch.randn(*size)) for size in ((8, 5), (4, 6), (5, 3)))

    def forward(self, x):
        q, k = self.q(x).view(-1, 6, 2, 4), self.k(x).view(-1, 6, 2, 4)
        weights = torch.einsum("bihd, bjhd -> bhij", q, k).softmax(-1)
        y = torch.einsum("bhij,bjhd->bihd", weights, k).flatten(2)
        y = torch.einsum("nt,bte->bne", self.mix, torch.einsum("btd,de->bte", y, self.w))
        return torch.einsum("be,ec->bc", y.mean(1), self.head)


NETWORKS["einsum"] = (Einsum, (6, 8), 0)


class Sums(nn.Module):
    """Those that are no products of matrices, or join samples."""

    def forward(self, x):
        y = torch.einsum("btd,bud->bu", x, x)
        return torch.einsum("btd,btd->bt", x, x) + y + torch.einsum("bt,ct->bc", x[:, 0], x[:, 1]).sum(1, keepdim=True)


REFUSALS["sums"] = (Sums, (4, 4), 0)


class Masks(nn.Module):
    """Comparisons, what they choose, and the largest of several dimensions."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(19, 3)
        self.floor = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        seen = x[:, :, 0] > -1
        scores = (q @ k.transpose(1, 2)).masked_fill(~seen[:, None], float("-inf"))
        y = scores.softmax(-1) @ torch.where((k > 0.1) & (q <= 0.5), k, -0.5)
        y = torch.where(y < self.floor, self.floor, y) + (q != 0).float() * 0.1
        y = y * ((q > k) | (y >= 0.2)) + torch.where(seen.unsqueeze(-1), y, torch.sqrt(q.masked_fill(q <= 0, 1.0)))
        y = y.clamp(-0.3, 1.5) + F.hardtanh(q) + k.clamp(max=0.4)
        pooled = [y.amax((1, 2), keepdim=True)[:, 0], y.max(1)[0], y.max(dim=-1, keepdim=True).values.flatten(1)]
        return self.head(torch.cat(pooled + [y.mean(1)], dim=1))


NETWORKS["masks"] = (Masks, (6, 6), 0)


class Chosen(nn.Module):
    """Conditions and infinities that a model file does not have."""

    def forward(self, x):
        y = torch.where(x.bool(), x, 0.0)
        return torch.where(x >= y, x, float("nan")) + x.unflatten(1, (2, 2, 2)).amax((1, 3)).flatten(1).repeat(1, 4)


REFUSALS["chosen"] = (Chosen, (8,), 0)


class NormalCLIP(CLIP):
    """Returns what its towers make, of which one makes zeros of zeros."""

    def __init__(self):
        super().__init__()
        self.visual = nn.Linear(24, 8, bias=False)

    def forward(self, image, text):
        image, text = F.normalize(self.visual(image), dim=-1), F.normalize(self.text(text).mean(1), dim=-1)
        return image, text, self.logit_scale.exp()


NETWORKS["normal"] = (NormalCLIP, NETWORKS["clip"][1], 40)
