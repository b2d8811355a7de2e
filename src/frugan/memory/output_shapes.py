"""What operations give without being run: a rule for each operation that steps are made of.

Torch has such rules of its own ("meta" kernels), for every operation; most are written in Python and take 50 to 1,000
times as long as these, and the first one that is called imports a compiler. What is not listed here is asked of them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from frugan.memory import shapes
from frugan.memory.shapes import Specs

aten = torch.ops.aten

Rule = Callable[..., Specs]
"""Takes the operation's own arguments; gives NotImplemented where only torch can tell."""


def _table() -> dict[Any, Rule]:
    """Operation -> its rule."""
    of: dict[Rule, tuple[Any, ...]] = {
        shapes.pointwise: (
            aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.mul.Tensor,
            aten.mul.Scalar, aten.addcmul.default, aten.addcdiv.default, aten.maximum.default, aten.minimum.default,
            aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
            aten.bitwise_xor.Tensor,
            aten.softplus_backward.default, aten.sigmoid_backward.default, aten.tanh_backward.default,
            aten.hardtanh_backward.default,
            aten.lerp.Scalar, aten.lerp.Tensor, aten.remainder.Scalar, aten.remainder.Tensor,
        ),
        shapes.float_pointwise: (
            aten.div.Tensor, aten.div.Scalar, aten.sqrt.default, aten.rsqrt.default, aten.exp.default, aten.log.default,
            aten.sin.default, aten.cos.default, aten.tanh.default, aten.sigmoid.default, aten.reciprocal.default,
        ),
        shapes.compared: (
            aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.eq.Scalar, aten.ne.Scalar,
            aten.ge.Tensor, aten.gt.Tensor, aten.le.Tensor, aten.lt.Tensor, aten.eq.Tensor, aten.ne.Tensor,
            aten.logical_and.default, aten.logical_or.default, aten.logical_not.default, aten.isfinite.default,
        ),
        shapes.second_first: (
            aten.threshold_backward.default, aten.leaky_relu_backward.default,
        ),
        shapes.where: (aten.where.self,),
        shapes.as_first: (
            aten.relu.default, aten.leaky_relu.default, aten.neg.default, aten.abs.default, aten.sgn.default,
            aten.sign.default, aten.floor.default, aten.ceil.default, aten.round.default, aten.clamp.default,
            aten.clamp_min.default, aten.clamp_max.default, aten.softplus.default, aten.bitwise_not.default,
            aten.flip.default,
        ),
        shapes.like: (
            aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default, aten.full_like.default,
            aten.rand_like.default, aten.randn_like.default,
        ),
        shapes.new: (
            aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
        ),
        shapes.new_strided: (aten.new_empty_strided.default,),
        shapes.made: (
            aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.rand.default, aten.rand.generator,
            aten.randn.default, aten.randn.generator,
        ),
        shapes.made_strided: (aten.empty_strided.default,),
        shapes.full: (aten.full.default,),
        shapes.number: (aten.scalar_tensor.default,),
        shapes.integers: (aten.randint.default, aten.randint.generator),
        shapes.integers_from: (aten.randint.low, aten.randint.low_generator),
        shapes.range_: (aten.arange.default, aten.arange.start, aten.arange.start_step),
        shapes.sum_: (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
        shapes.extreme: (aten.amax.default, aten.amin.default),
        shapes.variance: (aten.var.correction,),
        shapes.judged: (aten.all.default, aten.any.default, aten.all.dim, aten.any.dim),
        shapes.norm: (aten.linalg_vector_norm.default,),
        shapes.counted: (aten.count_nonzero.default,),
        shapes.mm: (aten.mm.default, aten.bmm.default),
        shapes.addmm: (aten.addmm.default, aten.baddbmm.default),
        shapes.mv: (aten.mv.default,),
        shapes.dot: (aten.dot.default,),
        shapes.convolution: (aten.convolution.default,),
        shapes.convolution_backward: (aten.convolution_backward.default,),
        shapes.average_pool: (aten.avg_pool2d.default,),
        shapes.max_pool: (aten.max_pool2d_with_indices.default,),
        shapes.as_second: (aten.avg_pool2d_backward.default, aten.max_pool2d_with_indices_backward.default),
        shapes.upsampled: (aten.upsample_nearest2d.default,),
        shapes.upsampled_backward: (aten.upsample_nearest2d_backward.default,),
        shapes.batch_norm: (aten.native_batch_norm.default,),
        shapes.batch_norm_backward: (aten.native_batch_norm_backward.default,),
        shapes.cat: (aten.cat.default,),
        shapes.stack: (aten.stack.default,),
        shapes.padded: (aten.constant_pad_nd.default,),
        shapes.embedding: (aten.embedding.default,),
        shapes.indexed: (aten.index.Tensor,),
        shapes.embedding_backward: (aten.embedding_dense_backward.default,),
        shapes.put_back: (aten.slice_backward.default, aten.select_backward.default),
        shapes.softmax: (aten._softmax.default,),
        shapes.softmax_backward: (aten._softmax_backward_data.default,),
        shapes.attention: (aten._scaled_dot_product_flash_attention_for_cpu.default,),
        shapes.attention_backward: (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,),
        shapes.each: (
            aten._foreach_mul.Scalar, aten._foreach_mul.List, aten._foreach_add.Scalar, aten._foreach_add.List,
            aten._foreach_div.List, aten._foreach_div.ScalarList, aten._foreach_sqrt.default,
        ),
        shapes.each_norm: (aten._foreach_norm.Scalar,),
    }  # fmt: skip
    return {operation: rule for rule, operations in of.items() for operation in operations}


RULES: Mapping[Any, Rule] = MappingProxyType(_table())
"""Operation -> what it gives."""
