"""Records vLLM, SGLang, Megatron-Core and transformers themselves on a CPU, for scripts/engines.sh and fixtures/engines: prompts
and decode steps with the engine's cache.

    python scripts/engines_server.py vllm|sglang|megatron|torch CHECKPOINT PACK [FAULT]
    python scripts/engines_server.py blocks FIXTURES PACKS

With vLLM and Megatron-Core FAULT is the dtype (default float32), else it is planted: newest in SGLang (decode steps leave out the newest key); in transformers position (decode steps begin at
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


def megatron(checkpoint, pack, dtype="float32"):
    """A batch of two prompts, and decode steps with its static cache. Its own modules, but where they ask for CUDA."""
    import torch
    torch.cuda.current_device = lambda: torch.device("cpu")  # where it makes buffers
    import megatron.core as package
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.inference.contexts.static_context import StaticInferenceContext
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.transformer_config import MLATransformerConfig
    from safetensors.torch import load_file

    from dsmoe_trace import recording

    class Core(DotProductAttention):
        """Without the widths that MLA gives its class of Transformer Engine alone: kv_channels is that of values."""

        def __init__(self, *args, k_channels=None, v_channels=None, **kwargs):
            super().__init__(*args, **kwargs)

    with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.get_cuda_rng_tracker(inference_rng_tracker=True)  # it keeps no states of a GPU
    layers, dense, dtype = c["num_hidden_layers"], c["first_k_dense_replace"], getattr(torch, dtype)
    config = MLATransformerConfig(
        num_layers=layers, hidden_size=c["hidden_size"], num_attention_heads=c["num_attention_heads"], ffn_hidden_size=c["intermediate_size"],
        q_lora_rank=c["q_lora_rank"], kv_lora_rank=c["kv_lora_rank"], qk_head_dim=c["qk_nope_head_dim"], kv_channels=c["v_head_dim"],
        qk_pos_emb_head_dim=c["qk_rope_head_dim"], v_head_dim=c["v_head_dim"], rope_type="rope", rotary_base=c["rope_theta"],
        rotary_scaling_factor=1.0, apply_rope_fusion=False, qk_layernorm=True, multi_latent_attention=True, normalization="RMSNorm",
        layernorm_epsilon=c["rms_norm_eps"], gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        num_moe_experts=c["n_routed_experts"], moe_ffn_hidden_size=c["moe_intermediate_size"], moe_layer_freq=[0] * dense + [1] * (layers - dense),
        moe_shared_expert_intermediate_size=c["moe_intermediate_size"] * c["n_shared_experts"], moe_router_topk=c["num_experts_per_tok"],
        moe_router_num_groups=c["n_group"], moe_router_group_topk=c["topk_group"], moe_router_score_function=c["scoring_func"],
        moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=c["routed_scaling_factor"], moe_router_dtype="fp32",
        moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather", attention_dropout=0.0, hidden_dropout=0.0,
        masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False, gradient_accumulation_fusion=False,
        use_cpu_initialization=True, perform_initialization=False, params_dtype=dtype, bf16=dtype == torch.bfloat16)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = Core
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=c["vocab_size"], max_sequence_length=c["max_position_embeddings"],
                     share_embeddings_and_output_weights=False, position_embedding_type="rope").eval()
    weights = load_file(os.path.join(checkpoint, "model.safetensors"))
    names = {"embedding.word_embeddings": "model.embed_tokens", "decoder.final_layernorm": "model.norm", "output_layer": "lm_head", "decoder": "model",
             "self_attention": "self_attn", "pre_mlp_layernorm": "post_attention_layernorm", "local_experts.": "", "linear_q_down_proj": "q_a_proj",
             "linear_q_up_proj": "q_b_proj", "linear_kv_down_proj": "kv_a_proj_with_mqa", "linear_kv_up_proj": "kv_b_proj", "linear_proj": "o_proj",
             "q_layernorm": "q_a_layernorm", "kv_layernorm": "kv_a_layernorm", "router.expert_bias": "gate.e_score_correction_bias", "router": "gate",
             "linear_fc2": "down_proj"}
    for name, t in model.state_dict().items():
        if isinstance(t, torch.Tensor):
            for megatrons, other in names.items():
                name = name.replace(megatrons, other)
            parts = [name] if "linear_fc1" not in name else [name.replace("linear_fc1", role) for role in ("gate_proj", "up_proj")]
            t.copy_(torch.cat([weights[part] for part in parts]))
    ids, cache = torch.tensor([ids[:6] for ids in prompts(checkpoint)[:2]]), StaticInferenceContext(2, 16)
    with recording(model, pack, engine="megatron", version=package.__version__, config=c), torch.no_grad():
        for _ in range(4):
            positions = torch.arange(cache.sequence_len_offset, cache.sequence_len_offset + ids.shape[1]).expand(2, -1)
            mask = torch.ones(len(positions[0]), len(positions[0]), dtype=torch.bool).triu(1)[None, None]  # of the prompt
            logits = model(ids, positions, mask if mask.numel() > 1 else None, inference_context=cache)
            cache.sequence_len_offset += ids.shape[1]
            cache.enable_decode_mode()
            ids = logits[:, -1:].argmax(-1)


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
    {"vllm": vllm, "sglang": sglang, "megatron": megatron, "torch": transformers, "blocks": blocks}[sys.argv[1]](*sys.argv[2:])
