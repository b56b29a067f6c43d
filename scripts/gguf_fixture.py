#!/usr/bin/env python3
"""Writes convert/gguf/testdata/gguf-py.gguf: what gguf-py makes of every type of value, and
of tensors of every dtype that is not quantised. Run with gguf 0.19.0; the file is committed."""

import sys

import gguf
import numpy as np


def main(path):
    w = gguf.GGUFWriter(path, "deepseek2")
    w.add_type("model")
    w.add_uint8("test.u8", 200)
    w.add_int8("test.i8", -100)
    w.add_uint16("test.u16", 60000)
    w.add_int16("test.i16", -30000)
    w.add_uint32("test.u32", 4000000000)
    w.add_int32("test.i32", -2000000000)
    w.add_float32("test.f32", 1e-6)
    w.add_bool("test.bool", True)
    w.add_string("test.string", "ein Füllhorn")
    w.add_uint64("test.u64", 1 << 63)
    w.add_int64("test.i64", -(1 << 62))
    w.add_float64("test.f64", 0.1)
    w.add_array("test.strings", ["a", "", "ß"])
    w.add_array("test.ints", [1, -2, 3])
    w.add_tensor("token_embd.weight", np.arange(35, dtype=np.float32).reshape(5, 7))
    w.add_tensor("output_norm.weight", np.arange(7, dtype=np.float32))
    w.add_tensor("blk.0.ffn_gate_exps.weight", np.arange(30, dtype=np.float16).reshape(2, 3, 5))
    bf16 = gguf.quants.quantize(np.arange(6, dtype=np.float32).reshape(2, 3), gguf.GGMLQuantizationType.BF16)
    w.add_tensor("blk.0.attn_q.weight", bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main(sys.argv[1])
