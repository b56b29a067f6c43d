"""Records vLLM, SGLang and transformers themselves on a CPU, for scripts/engines.sh and fixtures/engines: prompts and
decode steps with the engine's cache.

    python scripts/engines_server.py vllm|sglang|torch CHECKPOINT PACK [FAULT]
    python scripts/engines_server.py blocks FIXTURES PACKS

With vLLM FAULT is its dtype (default float32), else it is planted: newest in SGLang (decode steps leave out the newest key); in transformers position (decode steps begin at
position 0 again) and stale (the keys of a prefix lie in the wrong order). SGLang's "faults" dumper and passes are none: PACK is
what SGLang dumps by itself, in either format, of layer 1 alone with passes; beside it are the choices of experts that it
returned, and their tokens. blocks records, of each of fixtures/blocks of which this transformers has the class, a prompt: as
PACKS/NAME, and as PACKS/NAME-scale and NAME-shared with weights of experts that are a quarter larger, and without shared
experts. Needs what scripts/requirements-servers.txt installs; the
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


def vllm(checkpoint, pack, dtype="float32"):
    """Three requests that begin one after the other, so that prompts and decode steps are in one batch."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native  # 0.32's kernel for CPUs is wrong for queries of three axes
    llm = LLM(checkpoint, skip_tokenizer_init=True, enforce_eager=True, dtype=dtype, max_model_len=64, max_num_seqs=8,
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
        dump, flags = fault in ("dumper", "passes"), {}
        if dump:  # SGLang's own files, without a recorder
            del os.environ["DSMOE_TRACE"]
            flags = {"disable_radix_cache": True, "enable_return_routed_experts": True}
        if fault == "dumper":
            os.environ |= {"DUMPER_ENABLE": "1", "DUMPER_NON_INTRUSIVE_MODE": "all", "DUMPER_DIR": os.path.abspath(pack),
                           "DUMPER_ENABLE_OUTPUT_CONSOLE": "0"}
        elif dump:
            flags |= {"debug_tensor_dump_output_folder": os.path.abspath(pack), "debug_tensor_dump_layers": [1]}
        import sglang as package
        engine = package.Engine(
            model_path=checkpoint, skip_tokenizer_init=True, device="cpu", dtype="float32",
            attention_backend="torch_native", sampling_backend="pytorch", max_total_tokens=256, max_running_requests=8,
            mem_fraction_static=0.3, disable_cuda_graph=True, disable_overlap_schedule=True, disable_shared_experts_fusion=True,
            log_level="error", **flags)
        first, *others = prompts(checkpoint)
        sampling = {"max_new_tokens": 2 if fault == "passes" else 4, "temperature": 0, "ignore_eos": True}
        for batch in [[first[:4]]] if fault == "passes" else ([first], others):
            out = engine.generate(input_ids=batch, sampling_params=sampling, **({"return_routed_experts": True} if dump else {}))
            for n, (ids, of) in enumerate(zip(batch, out)):
                if dump:  # the choices alone: of all tokens but the last
                    name = f"{pack}-choices-{len(batch)}-{n}"
                    with open(name + ".json", "w", encoding="utf-8") as f:
                        json.dump({"routed_experts": of["meta_info"]["routed_experts"]}, f)
                    with open(name + "-tokens.json", "w", encoding="utf-8") as f:
                        json.dump([*ids, *of["output_ids"]][:-1], f)
        engine.shutdown()


def plugin():
    """SGLang's plugin: what SGLang 0.5.23 lacks to run DeepSeek's models on a CPU, and the planted fault."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

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
        import sglang.srt.mem_cache.pool_host.common as host
        host._cuda_host_register = lambda *_: None  # of the buffer of chosen experts
        AttentionBackendRegistry.register("torch_native", lambda attn, batch: AttnForwardMethod.MLA)

    def newest(original, self, q, k, v, layer, batch, *args, **kwargs):
        lengths, batch.seq_lens = batch.seq_lens, batch.seq_lens - 1
        try:
            return original(self, q, k, v, layer, batch, *args, **kwargs)
        finally:
            batch.seq_lens = lengths

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.__init__", before, HookType.BEFORE)
    if os.environ.get("ENGINES_FAULT") == "newest":
        HookRegistry.register("sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_decode", newest, HookType.AROUND)


def transformers(checkpoint, pack, fault=""):
    """A prompt in two chunks, and decode steps."""
    import torch
    from transformers import AutoModelForCausalLM

    from dsmoe_trace import recording
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([prompts(checkpoint)[0]])
    with recording(model, pack), torch.no_grad():
        out = model(ids[:, :4], use_cache=True)
        if fault == "stale":
            for layer in out.past_key_values.layers:
                layer.keys = layer.keys.flip(2)
        out = model(ids[:, 4:], past_key_values=out.past_key_values)
        for _ in range(3):
            positions = torch.zeros(1, 1, dtype=torch.long) if fault == "position" else None
            out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, position_ids=positions)


def blocks(fixtures, packs):
    """Families of which dsmoe computes the mixtures alone, right and with a mistake."""
    import torch
    import transformers as package

    from dsmoe_trace import record
    for name in sorted(os.listdir(fixtures)):
        checkpoint = os.path.join(fixtures, name, "checkpoint")
        with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as f:
            cls = getattr(package, json.load(f)["architectures"][0], None)
        if cls is None:
            continue
        model = cls.from_pretrained(checkpoint, dtype=torch.float32).eval()
        tokens = [np.random.default_rng(0).integers(2, model.config.get_text_config().vocab_size, size=20).tolist()]
        record(model, os.path.join(packs, name), tokens)
        faults = {"scale": [], "shared": []}
        for path, module in model.named_modules():
            if path.endswith((".gate", ".router")) and not isinstance(module, torch.nn.Linear):
                faults["scale"].append((module, lambda m, args, out: (out[0], out[1] * 1.25, out[2])))
            if path.endswith((".shared_expert", ".shared_experts")):
                faults["shared"].append((module, lambda m, args, out: torch.zeros_like(out)))
        for fault, planted in faults.items():
            hooks = [module.register_forward_hook(hook) for module, hook in planted]
            if planted:
                record(model, os.path.join(packs, f"{name}-{fault}"), tokens)
            for hook in hooks:
                hook.remove()


if __name__ == "__main__":
    {"vllm": vllm, "sglang": sglang, "torch": transformers, "blocks": blocks}[sys.argv[1]](*sys.argv[2:])
