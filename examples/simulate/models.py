"""Networks as lists of layers: which operators they call and which kernels these launch.

A layer's kernels are given per precision and batch, so that a scenario can change either.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.simulate.hardware import Kernel

WIDTH = {"fp32": 4, "tf32": 4, "bf16": 2}
TYPE_NAME = {"fp32": "float", "tf32": "float", "bf16": "c10::BFloat16"}

CONVOLUTION = {
    "fp32": "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, "
    "true>(int, int, int, float const*, int, float*, float const*)",
    "tf32": "sm80_xmma_{what}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_"
    "stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn",
    "bf16": "sm80_xmma_{what}_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_"
    "stage4_warpsize2x2x1_g1_tensor16x8x16_kernel_cudnn",
}
MATRIX = {
    "fp32": "ampere_sgemm_128x64_{what}",
    "tf32": "ampere_tf32_s1688gemm_128x64_ldg8_stages_32x3_{what}",
    "bf16": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_{what}",
}
UNALIGNED = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_{type}_s161616gemm_{type}_32x32_128x2_{what}_"
    "align{reads}>(cutlass_80_wmma_tensorop_{type}_s161616gemm_{type}_32x32_128x2_{what}_align"
    "{reads}::Params)"
)
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{what}, "
    "std::array<char*, {n}ul> >(int, at::native::{what}, std::array<char*, {n}ul>)"
)


@dataclass(frozen=True)
class Layer:
    """One module: its operators (outermost first), kernels, and sizes of its parameters."""

    module: str
    ops: tuple[str, ...]
    forward: tuple[Kernel, ...]
    node: str
    backward_ops: tuple[str, ...]
    backward: tuple[Kernel, ...]
    dims: tuple[tuple[int, ...], ...]  # inputs of the forward operators
    backward_dims: tuple[tuple[tuple[int, ...], ...], ...]  # inputs of each backward operator
    type_name: str
    parameters: tuple[int, ...] = ()
    buffers: int = 0


@dataclass(frozen=True)
class Model:
    """A network with its loss, and what one sample brings to the device."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    sample_bytes: int

    @property
    def parameters(self) -> list[int]:
        """Elements of each parameter, in order of the layers."""
        return [p for layer in self.layers for p in layer.parameters]


def elementwise(what: str, elements: int, precision: str, reads: int = 1) -> Kernel:
    """A pointwise kernel over so many elements."""
    moved = elements * WIDTH[precision] * (reads + 1)
    name = ELEMENTWISE.format(what=what, n=reads + 1)
    return Kernel(name, max(1, -(-elements // 512)), 128, bytes=moved)


def matrix(m: int, n: int, k: int, precision: str, what: str = "tn") -> Kernel:
    """A matrix product [m, k] x [k, n]; shapes that are no multiple of 8 get a slower kernel.

    1.4 times slower: a padded vocabulary once took a product from 14 to 10 ms.
    """
    aligned = precision == "fp32" or all(size % 8 == 0 for size in (m, n, k))
    name = MATRIX[precision].format(what=what)
    if not aligned:
        reads = max(a for a in (1, 2, 4) if all(size % a == 0 for size in (m, n, k)))
        name = UNALIGNED.format(type=precision, what=what, reads=reads)
    blocks = max(1, -(-m // 128)) * max(1, -(-n // 128))
    slower = 1.0 if aligned else 1.4
    moved = (m * n + n * k + m * k) * WIDTH[precision]
    return Kernel(name, blocks, 256, 2.0 * m * n * k * slower, moved, precision)


def convolution(
    batch: int, size: int, channels: tuple[int, int], kernel: int, stride: int, precision: str
) -> Layer:
    """A convolution without bias, NCHW."""
    before, after = channels
    out = size // stride
    weights = before * after * kernel * kernel
    flops = 2.0 * batch * out * out * weights
    moved = batch * (size * size * before + out * out * after) * WIDTH[precision]
    blocks = max(1, -(-batch * out * out // 128)) * max(1, -(-after // 128))

    def one(what: str) -> Kernel:
        name = CONVOLUTION[precision].format(what=what)
        return Kernel(name, blocks, 256, flops, moved, precision)

    return Layer(
        "Conv2d",
        ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"),
        (one("fprop"),),
        "ConvolutionBackward0",
        ("aten::convolution_backward",),
        (one("dgrad"), one("wgrad")),
        ((batch, before, size, size), (after, before, kernel, kernel)),
        (
            (
                (batch, after, out, out),
                (batch, before, size, size),
                (after, before, kernel, kernel),
            ),
        ),
        TYPE_NAME[precision],
        (weights,),
    )


def batch_norm(batch: int, size: int, channels: int, precision: str) -> Layer:
    """Batch normalisation with its running statistics."""
    elements = batch * size * size * channels
    moved = elements * WIDTH[precision]
    forward = Kernel(
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, "
        "float const*, cudnnTensorStruct, float*, float const*, float const*)",
        channels * 4,
        512,
        bytes=moved * 3,
    )
    backward = Kernel(
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, "
        "float, float, cudnnTensorStruct, float const*)",
        channels * 4,
        512,
        bytes=moved * 5,
    )
    return Layer(
        "BatchNorm2d",
        ("aten::batch_norm", "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"),
        (forward,),
        "CudnnBatchNormBackward0",
        ("aten::cudnn_batch_norm_backward",),
        (backward,),
        ((batch, channels, size, size), (channels,)),
        (((batch, channels, size, size), (batch, channels, size, size), (channels,)),),
        TYPE_NAME[precision],
        (channels, channels),
        3,
    )


def pointwise(op: str, node: str, elements: int, dims: tuple[int, ...], precision: str) -> Layer:
    """An activation or a residual addition."""
    functor = {
        "relu": "launch_clamp_scalar",
        "gelu": "GeluCUDAKernelImpl",
        "add": "CUDAFunctor_add",
    }
    reads = 2 if op == "add" else 1
    backward = elementwise("threshold_kernel_impl", elements, precision, 2)
    return Layer(
        op.upper(),
        (f"aten::{op}", "aten::clamp_min") if op == "relu" else (f"aten::{op}",),
        (elementwise(functor[op], elements, precision, reads),),
        node,
        ("aten::threshold_backward",) if op != "add" else (),
        (backward,) if op != "add" else (),
        (dims,) * reads,
        ((dims, dims),) if op != "add" else (),
        TYPE_NAME[precision],
    )


def linear(rows: int, before: int, after: int, precision: str) -> Layer:
    """A fully connected layer with bias."""
    return Layer(
        "Linear",
        ("aten::linear", "aten::addmm"),
        (matrix(rows, after, before, precision),),
        "AddmmBackward0",
        ("aten::mm", "aten::mm"),
        (
            matrix(rows, before, after, precision, "nn"),
            matrix(after, before, rows, precision, "nt"),
        ),
        ((after,), (rows, before), (before, after)),
        (((rows, after), (after, before)), ((after, rows), (rows, before))),
        TYPE_NAME[precision],
        (before * after, after),
    )


def layer_norm(rows: int, width: int, precision: str) -> Layer:
    """Layer normalisation."""
    moved = rows * width * WIDTH[precision]
    name = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{t}, float>(int)"
    typed = name.format(t=TYPE_NAME[precision])
    backward = typed.replace("vectorized_layer_norm_kernel", "layer_norm_grad_input_kernel")
    return Layer(
        "LayerNorm",
        ("aten::layer_norm", "aten::native_layer_norm"),
        (Kernel(typed, rows, 256, bytes=moved * 2),),
        "NativeLayerNormBackward0",
        ("aten::native_layer_norm_backward",),
        (Kernel(backward, rows, 256, bytes=moved * 4),),
        ((rows, width), (width,)),
        (((rows, width), (rows, width)),),
        TYPE_NAME[precision],
        (width, width),
    )


def resnet(
    batch: int = 128, precision: str = "bf16", size: int = 56, sample_bytes: int | None = None
) -> Model:
    """Sixteen convolutions in four stages with batch norm and ReLU, as in ResNet-18.

    ``size`` is that of the first feature map, half of the picture's; a sample is a BF16 picture
    unless ``sample_bytes`` says otherwise.
    """
    layers: list[Layer] = []
    channels, current = 64, size
    for stage in range(4):
        for block in range(4):
            stride = 2 if stage and block == 0 else 1
            after = channels * stride
            layers.append(convolution(batch, current, (channels, after), 3, stride, precision))
            channels, current = after, current // stride
            elements = batch * current * current * channels
            dims = (batch, channels, current, current)
            layers.append(batch_norm(batch, current, channels, precision))
            if block % 2:
                layers.append(pointwise("add", "AddBackward0", elements, dims, precision))
            layers.append(pointwise("relu", "ReluBackward0", elements, dims, precision))
    layers.append(linear(batch, channels, 1000, precision))
    picture = 3 * (2 * size) ** 2 * 2 if sample_bytes is None else sample_bytes
    return Model("resnet", tuple(layers), batch, picture)


def transformer(
    depth: int = 12,
    batch: int = 8,
    length: int = 512,
    width: int = 768,
    precision: str = "bf16",
    vocabulary: int = 32_000,
) -> Model:
    """Blocks of projections, norms and activations (attention as two matrix products)."""
    rows = batch * length
    layers: list[Layer] = []
    for _ in range(depth):
        layers.append(layer_norm(rows, width, precision))
        layers.append(linear(rows, width, 3 * width, precision))
        layers.append(linear(rows, width, width, precision))
        layers.append(pointwise("add", "AddBackward0", rows * width, (rows, width), precision))
        layers.append(layer_norm(rows, width, precision))
        layers.append(linear(rows, width, 4 * width, precision))
        shape = (rows, 4 * width)
        layers.append(pointwise("gelu", "GeluBackward0", rows * 4 * width, shape, precision))
        layers.append(linear(rows, 4 * width, width, precision))
        layers.append(pointwise("add", "AddBackward0", rows * width, (rows, width), precision))
    layers.append(linear(rows, width, vocabulary, precision))
    return Model("transformer", tuple(layers), batch, length * 8)


def perceptron(
    depth: int = 40, batch: int = 64, width: int = 256, precision: str = "tf32"
) -> Model:
    """Many small linear layers with ReLU: kernels of a few microseconds."""
    layers: list[Layer] = []
    for _ in range(depth):
        layers.append(linear(batch, width, width, precision))
        layers.append(pointwise("relu", "ReluBackward0", batch * width, (batch, width), precision))
    return Model("perceptron", tuple(layers), batch, width * 4)
