"""Records vLLM and SGLang themselves on a CPU, for scripts/engines.sh and fixtures/engines: several requests, prompts and
decode steps with the engine's cache.

    python scripts/engines_server.py vllm|sglang CHECKPOINT PACK [FAULT]

FAULT is planted in SGLang: newest (decode steps leave out the newest key), position (decode steps begin at position 0
again), stale (keys of a cached prefix lie in the wrong order). Needs what scripts/requirements-servers.txt installs; the
recorder is what `dsmoe trace-script torch` prints, as dsmoe_trace.py in PYTHONPATH."""
import json
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
# Stands in for SGLang's compiled kernels: every name exists, none can be called.
STUB = '''__version__ = "0.4.10"
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    def missing(*args, **kwargs): raise NotImplementedError("sgl_kernel." + name)
    return missing
'''


def prompts(checkpoint):
    with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    ids = np.random.default_rng(0).integers(vocab, size=11).tolist()
    return ids[:6], ids[:4] + ids[6:8], ids[8:11]  # the second begins as the first does


def vllm(checkpoint, pack):
    """Three requests that begin one after the other, so that prompts and decode steps are in one batch."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native  # 0.32's kernel for CPUs is wrong for queries of three axes
    llm = LLM(checkpoint, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64, max_num_seqs=8,
              max_num_batched_tokens=64, enable_prefix_caching=False, worker_extension_cls="dsmoe_trace.VLLMWorker")
    print(*llm.collective_rpc("dsmoe_start", args=(pack,)))
    for n, ids in enumerate(prompts(checkpoint)):
        llm.llm_engine.add_request(str(n), {"prompt_token_ids": ids}, SamplingParams(max_tokens=4, temperature=0, detokenize=False, ignore_eos=True))
        llm.llm_engine.step()
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    print(*llm.collective_rpc("dsmoe_stop"))


def sglang(checkpoint, pack, fault=""):
    """A request, then two in one batch, of which one finds its prefix in the cache."""
    with tempfile.TemporaryDirectory() as plugins:
        os.mkdir(os.path.join(plugins, "sgl_kernel"))
        for file, text in {"sgl_kernel/__init__.py": STUB}.items():
            with open(os.path.join(plugins, file), "w", encoding="utf-8") as f:
                f.write(text)
        for name, entry in {"dsmoe_trace": "sglang", "engines_server": "plugin"}.items():
            info = os.path.join(plugins, name + "-1.dist-info")
            os.mkdir(info)
            for file, text in {"METADATA": f"Name: {name}\nVersion: 1\n", "entry_points.txt": f"[sglang.srt.plugins]\n{name} = {name}:{entry}\n"}.items():
                with open(os.path.join(info, file), "w", encoding="utf-8") as f:
                    f.write(text)
        sys.path[:0] = [plugins]
        os.environ |= {"PYTHONPATH": os.pathsep.join([plugins, HERE, os.environ.get("PYTHONPATH", "")]), "SGLANG_USE_CPU_ENGINE": "1",
                       "DSMOE_TRACE": os.path.abspath(pack), "DSMOE_STEPS": "8", "ENGINES_FAULT": fault}
        import sglang as package
        engine = package.Engine(
            model_path=checkpoint, skip_tokenizer_init=True, device="cpu", dtype="float32", attention_backend="torch_native",
            sampling_backend="pytorch", max_total_tokens=256, max_running_requests=8, mem_fraction_static=0.05, disable_cuda_graph=True,
            disable_overlap_schedule=True, disable_shared_experts_fusion=True, log_level="error")
        first, *others = prompts(checkpoint)
        for batch in ([first], others):
            engine.generate(input_ids=batch, sampling_params={"max_new_tokens": 4, "temperature": 0, "ignore_eos": True})
        engine.shutdown()


def plugin():
    """SGLang's plugin: what SGLang 0.5.23 lacks to run DeepSeek's models on a CPU, and the planted fault."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    fault = os.environ.get("ENGINES_FAULT")

    def before(*args, **kwargs):
        import sglang.srt.layers.rotary_embedding.factory as factory
        from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
        from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod
        cpu = factory.get_rope_cpu  # knows deepseek_yarn alone

        def rope(head, rotary, longest, base, neox=True, scaling=None, dtype=None, partial=1.0, device=None):
            if scaling:
                return cpu(head, rotary, longest, base, neox, scaling, dtype, partial, device)
            return factory.get_rope(head, rotary, longest, base, neox, None, dtype, partial)

        factory.get_rope_cpu = rope
        AttentionBackendRegistry.register("torch_native", lambda attn, batch: AttnForwardMethod.MLA)

    def newest(original, self, q, k, v, layer, batch, *args, **kwargs):
        lengths, batch.seq_lens = batch.seq_lens, batch.seq_lens - 1
        try:
            return original(self, q, k, v, layer, batch, *args, **kwargs)
        finally:
            batch.seq_lens = lengths

    def position(original, self, ids, positions, batch, *args, **kwargs):
        return original(self, ids, torch.zeros_like(positions) if batch.forward_mode.is_decode() else positions, batch, *args, **kwargs)

    def stale(original, self, ids, positions, batch, *args, **kwargs):
        from sglang.srt.model_executor.forward_context import get_req_to_token_pool, get_token_to_kv_pool
        if batch.forward_mode.is_extend() and int(batch.extend_prefix_lens[0]):
            at = get_req_to_token_pool().req_to_token[batch.req_pool_indices[0], :int(batch.extend_prefix_lens[0])].long()
            for keys in get_token_to_kv_pool().kv_buffer:
                keys[at] = keys[at].flip(0)
        return original(self, ids, positions, batch, *args, **kwargs)

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.__init__", before, HookType.BEFORE)
    for name, target, hook in (
            ("newest", "layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_decode", newest),
            ("position", "models.deepseek_v2.DeepseekV2ForCausalLM.forward", position),
            ("stale", "models.deepseek_v2.DeepseekV2ForCausalLM.forward", stale)):
        if name == fault:
            HookRegistry.register("sglang.srt." + target, hook, HookType.AROUND)


if __name__ == "__main__":
    {"vllm": vllm, "sglang": sglang}[sys.argv[1]](*sys.argv[2:])
