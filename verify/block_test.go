package verify_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// blockFamilies have packs of mixtures alone.
var blockFamilies = []string{"afmoe", "bailing-hybrid", "kimi-linear", "mimo-v2-flash", "flint", "ling-1", "qwen3-next",
	"mistral4", "axk2", "laguna", "kolibri1", "lara-mini", "dots3-note", "beam", "step3p7", "minimax-m3", "glm5-next", "qwen3-5",
	"hy-v4", "mistral-large4", "nemotron-h", "longcat-flash"}

// TestBlocksPass: of a family whose attention is not computed the mixtures pass, and the verdict says that it is of these.
func TestBlocksPass(t *testing.T) {
	for _, family := range blockFamilies {
		for _, golden := range []string{"/golden-f32", "/golden-bf16"} {
			c, p := open(t, "blocks/"+family+golden)
			r := run(t, c.Config, c, p, verify.Options{})
			assert.Equal(t, report.Pass, r.Verdict, family+golden)
			layers, of := p.Manifest.Block.Layers, c.Config.NumHiddenLayers
			assert.Equal(t, fmt.Sprintf("the MLPs of %s of %d, attention is not computed", report.LayersText(layers), of),
				r.Scope.Text, family)
			assert.Equal(t, layers, r.Scope.Blocks, family)
			assert.Len(t, r.Scope.Unread, of-len(layers), family)
			assert.False(t, r.Scope.Whole || r.Scope.Head || r.Scope.Embedding, family)
			assert.Equal(t, len(p.Manifest.Tensors)-1-len(layers), r.Coverage.GoldenChecked, family) // not tokens and inputs
		}
	}
}

// TestBlocksFail: a mistake in a mixture fails at its stage, and its cause is named.
func TestBlocksFail(t *testing.T) {
	for family, x := range map[string]struct{ key, value, stage, cause string }{
		"kimi-linear":    {"moe_renormalize", "false", "mlp.gate.topk_weight", "norm-topk"},
		"bailing-hybrid": {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"mimo-v2-flash":  {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
		"flint":          {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"qwen3-next":     {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"ling-1":         {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"afmoe":          {"rms_norm_eps", "0.01", "post_mlp_layernorm.output", "norm-eps"},
		"mistral4":       {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"axk2":           {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
		"laguna":         {"moe_routed_scaling_factor", "1.0", "mlp.output", "routed-scale"},
		"kolibri1":       {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"lara-mini":      {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"dots3-note":     {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
		"beam":           {"routed_scaling_factor", "1.0", "mlp.output", "routed-scale"},
		"step3p7":        {"moe_router_scaling_factor", "1.0", "mlp.output", "routed-scale"},
		"minimax-m3":     {"routed_scaling_factor", "1.0", "mlp.output", "routed-scale"},
		"glm5-next":      {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"hy-v4":          {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"mistral-large4": {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"nemotron-h":     {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"longcat-flash":  {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
	} {
		c, p := open(t, "blocks/"+family+"/golden-f32")
		changed, err := c.Config.Override(map[string]jsontext.Value{x.key: jsontext.Value(x.value)})
		require.NoError(t, err)
		r := run(t, changed, c, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, family)
		assert.Equal(t, pack.StageOf(p.Manifest.Block.Layers[0], x.stage), *r.FirstDivergence, family)
		require.NotEmpty(t, r.Causes, family)
		assert.Equal(t, x.cause, r.Causes[0].ID, family)
	}
}

// TestParamsOfMistral: the mixture that params.json describes has Mistral Large 4's rules, whose pack it passes, and not
// Mistral Small 4's.
func TestParamsOfMistral(t *testing.T) {
	for _, golden := range []string{"golden-f32", "golden-bf16"} {
		for scale, want := range map[string]report.Verdict{"2.5": report.Pass, "1.0": report.Fail} {
			c, p := open(t, "blocks/mistral-large4/"+golden)
			params, err := config.Parse(strings.NewReader(`{"dim":16,"n_layers":2,"hidden_dim":24,"norm_eps":1e-05,"vocab_size":24,
				"moe":{"num_experts":8,"num_experts_per_tok":3,"num_shared_experts":1,"expert_hidden_dim":8,"first_k_dense_replace":1,
				"num_expert_groups":4,"num_expert_groups_per_tok":2,"routed_scale":` + scale + `}}`))
			require.NoError(t, err)
			p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "torch"}
			p.Manifest.Config = nil
			r := run(t, params, withoutLayerScales{c}, p, verify.Options{})
			assert.Equal(t, want, r.Verdict, golden+scale)
		}
	}
}

// TestBlocksOfEngines: what a trace holds beside the MLPs is not compared, and fails nothing; a wrong expert does.
func TestBlocksOfEngines(t *testing.T) {
	for family, down := range map[string]string{"kimi-linear": "block_sparse_moe.experts.1.w2", "afmoe": "mlp.experts.1.down_proj"} {
		c, p := open(t, "blocks/"+family+"/golden-f32")
		p.Replaced = map[string]tensor.Tensor{}
		more := []string{"model.embed_tokens.output", "model.layers.1.self_attn.output", "model.layers.2.output", "model.norm.output",
			"lm_head.output"}
		for _, name := range more {
			width := c.Config.HiddenSize
			if name == "lm_head.output" {
				width = c.Config.VocabSize
			}
			x := tensor.Tensor{DType: tensor.F32, Shape: []int{1, 24, width}, Data: make([]byte, 4*24*width)}
			p.Manifest.Tensors[name], p.Replaced[name] = pack.Entry{DType: x.DType, Shape: x.Shape}, x
		}
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v", family, r.Reasons)
		require.Equal(t, len(p.Manifest.Tensors)-1-len(p.Manifest.Block.Layers)-len(more), r.Coverage.GoldenChecked, family)
		skipped := 0
		for _, check := range r.Checks {
			if check.Status == report.OutsideMLPs {
				skipped++
			}
		}
		require.Equal(t, len(more), skipped, family)
		down = "model.layers.2." + down + ".weight"
		r = run(t, c.Config, replace(c, down, scaled(t, get(t, c, down), 1.02, 1)), p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, family)
		require.Equal(t, "model.layers.2.mlp.experts.output", *r.FirstDivergence, family)
	}
}

// TestBlocksOfLlama: llama.cpp's traces name stages by weights of GGUF files. What is outside the MLPs is not compared, in
// layers without an MLP the norm of that neither, and a factor that llama.cpp multiplies top-k weights with, not their sum, is
// the same product.
func TestBlocksOfLlama(t *testing.T) {
	scaled := func(kinds ...string) func(kind string, values []float32, by float32) {
		return func(kind string, values []float32, by float32) {
			for i := range values {
				if slices.Contains(kinds, kind) {
					values[i] *= by
				}
			}
		}
	}
	inWeights := scaled("mlp.gate.topk_weight", "mlp.experts.output")
	for _, x := range []struct {
		family, norm string
		more         []string // names of tensors that are not compared
		change       func(kind string, values []float32, by float32)
		wrong        string // the stage that fails
	}{
		{"afmoe", "ffn_norm", []string{"blk.0.attn_gate.output", "blk.1.post_attention_norm.output"}, nil, ""},
		{"qwen3-next", "post_attention_norm", []string{"blk.1.ssm_in.output", "token_embd.output"}, nil, ""},
		{"nemotron-h", "attn_norm", []string{"blk.0.attn_norm.output", "blk.0.attn_q.output", "output_norm.output"}, nil, ""},
		{"nemotron-h", "attn_norm", nil, scaled("mlp.fc2_latent_proj.output"), "mlp.fc2_latent_proj.output"},
		{"laguna", "ffn_norm", nil, nil, ""},
		{"laguna", "ffn_norm", nil, inWeights, ""},
		{"minimax-m3", "ffn_norm", nil, inWeights, ""},
		{"step3p7", "ffn_norm", nil, inWeights, ""},
		{"beam", "ffn_norm", nil, inWeights, ""},
		{"laguna", "ffn_norm", nil, scaled("mlp.gate.topk_weight"), "mlp.experts.output"},
		{"laguna", "ffn_norm", nil, scaled("mlp.experts.output"), "mlp.experts.output"},
		{"hy-v4", "ffn_norm", nil, scaled("mlp.gate.topk_weight"), "mlp.gate.topk_weight"},
	} {
		c, p := open(t, "blocks/"+x.family+"/golden-f32")
		l := p.Manifest.Block.Layers[0]
		names := map[string]string{pack.AttentionNorm: x.norm, "mlp.gate.logits": "ffn_gate_inp",
			"mlp.shared_experts.output": "ffn_down_shexp", "mlp.shared_expert_gate.output": "ffn_gate_inp_shexp",
			"mlp.fc1_latent_proj.output": "ffn_latent_down", "mlp.fc2_latent_proj.output": "ffn_latent_up",
			"post_mlp_layernorm.output": "post_ffw_norm"}
		tensors := map[string]pack.Entry{}
		p.Replaced = map[string]tensor.Tensor{}
		for name, e := range p.Manifest.Tensors {
			s := pack.Parse(name)
			if e.DType == tensor.F32 {
				values, err := p.Float32s(name)
				require.NoError(t, err)
				if x.change != nil {
					x.change(s.Kind, values, float32(c.Config.Router.RoutedScalingFactor))
				}
				data, err := binary.Append(nil, binary.LittleEndian, values)
				require.NoError(t, err)
				p.Replaced[name] = tensor.Tensor{DType: e.DType, Shape: e.Shape, Data: data}
			}
			if named := names[s.Kind]; named != "" {
				name = fmt.Sprintf("blk.%d.%s.output", s.Layer, named)
			}
			tensors[name] = e
		}
		for _, name := range x.more {
			tensors[name] = pack.Entry{DType: tensor.F32, Shape: p.Manifest.Tensors[pack.StageOf(l, pack.AttentionNorm)].Shape}
		}
		p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "llama.cpp", Version: "1"}
		p.Manifest.Config, p.Manifest.Block, p.Manifest.Tensors = nil, nil, tensors
		r := run(t, c.Config, c, p, verify.Options{})
		if x.wrong != "" {
			require.Equal(t, report.Fail, r.Verdict, x.family)
			require.Equal(t, pack.StageOf(l, x.wrong), *r.FirstDivergence, x.family)
			continue
		}
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", x.family, r.Reasons, r.FirstDivergence)
		skipped := 0
		for _, check := range r.Checks {
			if check.Status == report.OutsideMLPs {
				skipped++
			}
		}
		require.Equal(t, len(x.more), skipped, x.family)
	}
}

// TestBlocksOfOneToken: of one token, and of equal ones, the MLPs are compared as of others: attention is not asked for.
func TestBlocksOfOneToken(t *testing.T) {
	for _, family := range blockFamilies {
		c, p := open(t, "blocks/"+family+"/golden-f32")
		one, err := p.First(c.Config, 1, func(pack.Stage) bool { return true })
		require.NoError(t, err)
		r := run(t, c.Config, c, one, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v", family, r.Reasons)
	}
}

// TestLogitsThatAreWidened: logits that were rounded to BF16, and are float32 numbers in the pack, are judged as rounded ones:
// where they lie between two numbers of BF16, bounds are as wide as these are apart.
func TestLogitsThatAreWidened(t *testing.T) {
	widest := 0.0
	for factor := float32(1.0); factor < 2; factor += 1.0 / 64 {
		c, p := open(t, "blocks/afmoe/golden-bf16")
		l := p.Manifest.Block.Layers[0]
		in, err := p.Input()
		require.NoError(t, err)
		name := pack.StageOf(l, pack.AttentionNorm)
		taken, err := p.Float32s(name)
		require.NoError(t, err)
		x := tensor.Tensor{DType: tensor.BF16, Shape: p.Manifest.Tensors[name].Shape}
		for i, v := range taken {
			taken[i] = tensor.Rounded(v*factor, tensor.BF16)
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(math.Float32bits(taken[i])>>16))
		}
		m, err := model.Load(c.Config, c)
		require.NoError(t, err)
		p.Replaced = map[string]tensor.Tensor{name: x}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Trace: planted{p},
			Arithmetic: model.NewPlain(model.Options{DType: tensor.BF16})}
		_, err = net.Layer(context.Background(), l, &model.Activation{Shape: x.Shape, Values: taken, DType: tensor.BF16})
		require.NoError(t, err)
		r := run(t, c.Config, c, p, verify.Options{})
		for _, check := range r.Checks {
			if check.Stage().Kind == pack.GateLogits && check.Sees != nil {
				widest = max(widest, float64(*check.Sees))
				require.False(t, check.Blind)
			}
		}
	}
	require.Greater(t, widest, bounds.Blindness(tensor.F32))
}

// TestBlocksOfWholeModels: of a pack of MLPs alone no more is asked, and no more said, though attention could be computed.
func TestBlocksOfWholeModels(t *testing.T) {
	c, p := open(t, "v3/golden-f32")
	p.Manifest.Block = new(struct {
		Layers []int  `json:"layers"`
		Input  string `json:"input"`
	})
	p.Manifest.Block.Layers, p.Manifest.Block.Input = []int{1, 2}, pack.AttentionNorm
	p.Replaced = map[string]tensor.Tensor{}
	for name, e := range p.Manifest.Tensors {
		x, s := tensor.Tensor{DType: e.DType, Shape: e.Shape}, pack.Parse(name)
		var err error
		switch {
		case e.DType == tensor.I64:
			values, bad := p.Ints(name)
			require.NoError(t, bad)
			for _, v := range values {
				x.Data = binary.LittleEndian.AppendUint64(x.Data, uint64(v))
			}
		default:
			values, bad := p.Float32s(name)
			require.NoError(t, bad)
			x.Data, err = binary.Append(nil, binary.LittleEndian, values)
			require.NoError(t, err)
		}
		if outside := s.Layer < 1 || s.Layer > 2 || !strings.HasPrefix(s.Kind, "mlp.") && s.Kind != pack.AttentionNorm; !outside ||
			name == "input_ids" || name == "attention_mask" {
			p.Replaced[name] = x
		}
	}
	whole := maps.Clone(p.Manifest.Tensors)
	maps.DeleteFunc(p.Manifest.Tensors, func(name string, _ pack.Entry) bool { _, kept := p.Replaced[name]; return !kept })
	p.Manifest.Probes = nil
	r := run(t, c.Config, c, p, verify.Options{})
	assert.Equal(t, report.Pass, r.Verdict, r.Reasons)
	assert.Equal(t, []int{1, 2}, r.Scope.Blocks)
	assert.False(t, r.Scope.Whole || r.Scope.Head || r.Scope.Embedding)
	_, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{Mode: report.Chained})
	require.ErrorContains(t, err, "the pack is of MLPs alone")
	wrong, err := c.Config.Override(map[string]jsontext.Value{"routed_scaling_factor": jsontext.Value("1.25")})
	require.NoError(t, err)
	r = run(t, wrong, c, p, verify.Options{})
	require.Equal(t, report.Fail, r.Verdict)
	assert.Equal(t, "routed-scale", r.Causes[0].ID)

	_, p = open(t, "v3/golden-f32") // a pack with more than it says
	require.Len(t, p.Manifest.Tensors, len(whole))
	p.Manifest.Block = new(struct {
		Layers []int  `json:"layers"`
		Input  string `json:"input"`
	})
	p.Manifest.Block.Layers, p.Manifest.Block.Input = []int{1, 2}, pack.AttentionNorm
	r = run(t, c.Config, c, p, verify.Options{})
	assert.Equal(t, report.Pass, r.Verdict)
	assert.True(t, r.Scope.Whole)
}

// withoutLayerScales lacks the one tensor that Mistral Large 4 has outside attention, and Mistral Large 3 has not.
type withoutLayerScales struct{ weights.Source }

func (s withoutLayerScales) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for info := range s.Source.Tensors() {
			if info.Name != "lerope.alpha" && !yield(info) {
				return
			}
		}
	}
}

// TestBlocksAreNotRunWhole: chained mode, and a pack without what a mixture takes, are errors.
func TestBlocksAreNotRunWhole(t *testing.T) {
	c, p := open(t, "blocks/kimi-linear/golden-f32")
	_, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{Mode: report.Chained})
	require.ErrorContains(t, err, "attention is not computed for it")
	delete(p.Manifest.Tensors, pack.StageOf(2, pack.AttentionNorm))
	_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	require.ErrorContains(t, err, "layer 2: what its MLP takes is not there: model.layers.2.post_attention_layernorm.output")
}

// TestBlocksOfTraces: a trace of an engine may have the stages of shared experts with a batch before their rows.
func TestBlocksOfTraces(t *testing.T) {
	c, p := open(t, "blocks/flint/golden-f32")
	p.Replaced = map[string]tensor.Tensor{}
	p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "torch"}
	for name, e := range p.Manifest.Tensors {
		if strings.HasSuffix(name, "shared_experts.output") {
			values, err := p.Float32s(name)
			require.NoError(t, err)
			e.Shape = append([]int{1}, e.Shape...)
			x := tensor.Tensor{DType: e.DType, Shape: e.Shape}
			x.Data, err = binary.Append(nil, binary.LittleEndian, values)
			require.NoError(t, err)
			p.Manifest.Tensors[name], p.Replaced[name] = e, x
		}
	}
	r := run(t, c.Config, c, p, verify.Options{})
	assert.Equal(t, report.Pass, r.Verdict)
	assert.Equal(t, []int{1, 2}, r.Scope.Blocks)
}

// TestBlocksThatRoundElsewhere: an engine in BF16 may round a norm before its weight, too, where the model's own class rounds
// once, and may compute a router's logits in float32, where the class widens what it rounded. A wrong weight of that norm, or
// of the router, fails.
func TestBlocksThatRoundElsewhere(t *testing.T) {
	for _, x := range []struct {
		family string
		ways   []string // that are recognised
		wrong  string   // a weight that is changed
		stage  string   // the weight's
	}{
		{"afmoe", []string{"norm: twice", "router: f32"}, "post_mlp_layernorm", "post_mlp_layernorm.output"},
		{"afmoe", []string{"norm: twice", "router: f32"}, "mlp.router.gate", pack.GateLogits},
		{"laguna", []string{"router: f32"}, "mlp.gate", pack.GateLogits},
		{"beam", []string{"norm: twice"}, "post_feedforward_layernorm", "post_mlp_layernorm.output"},
	} {
		c, p := open(t, "blocks/"+x.family+"/golden-bf16")
		roundElsewhere(t, c, p, p.Manifest.Block.Layers)
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, "%s: a reference rounds as its classes do", x.family)
		p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "vllm", Version: "1"}
		r = run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", x.family, r.Reasons, r.FirstDivergence)
		var ways []string
		for _, found := range r.Golden.Recognised {
			for _, way := range found.Ways {
				ways = append(ways, found.Kind+": "+way)
			}
		}
		require.Equal(t, x.ways, ways, x.family)
		l := p.Manifest.Block.Layers[0]
		weight := pack.StageOf(l, x.wrong) + ".weight"
		r = run(t, c.Config, replace(c, weight, scaled(t, get(t, c, weight), 1.02, 1)), p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, x.family)
		require.Equal(t, pack.StageOf(l, x.stage), *r.FirstDivergence, x.family)
	}
}

// TestLogitsThatTheClassRounds: where an engine rounds logits as the model's own class does, before they are widened, nothing
// is said of choices by logits that are not rounded: they are not known.
func TestLogitsThatTheClassRounds(t *testing.T) {
	c, p := open(t, "blocks/afmoe/golden-bf16")
	roundElsewhere(t, c, p, []int{slices.Max(p.Manifest.Block.Layers)})
	p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "vllm", Version: "1"}
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, "%v %v", r.Reasons, r.FirstDivergence)
	require.Contains(t, printed(t, r), "router: t, but in layer 2 f32")
	require.Len(t, r.Routing.Layers, 2)
	for _, layer := range r.Routing.Layers {
		require.Nil(t, layer.Rounded)
	}
}

// roundElsewhere puts layers in the place of the pack's as an engine computes them that rounds norms twice and logits not at all.
func roundElsewhere(t *testing.T, c *checkpoint.Checkpoint, p *pack.Pack, layers []int) {
	in, err := p.Input()
	require.NoError(t, err)
	m, err := model.Load(c.Config.WithRules(func(r *config.Rules) {
		r.NormsOnce, r.Router.RouterFloat32 = false, r.Router.RouterFloat32 || r.Router.WidensLogits
	}), c)
	require.NoError(t, err)
	p.Replaced = map[string]tensor.Tensor{}
	o := model.Options{DType: tensor.BF16}
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: model.NewPlain(o), Trace: planted{p}}
	for _, l := range layers {
		taken, err := p.Float32s(pack.StageOf(l, pack.AttentionNorm))
		require.NoError(t, err)
		_, err = net.Layer(context.Background(), l, &model.Activation{Shape: []int{in.Batch, in.Seq, c.Config.HiddenSize},
			Values: taken, DType: tensor.BF16})
		require.NoError(t, err)
	}
}

// planted is a trace that replaces the stages of a pack with those that a pass computes.
type planted struct{ *pack.Pack }

// Stage implements model.Trace.
func (r planted) Stage(name string, x *model.Activation) error {
	if !r.Has(name) {
		return nil
	}
	data := make([]byte, 0, 4*len(x.Values))
	for _, v := range x.Values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	r.Replaced[name] = tensor.Tensor{DType: tensor.F32, Shape: x.Shape, Data: data}
	return nil
}

// TopK implements model.Trace.
func (r planted) TopK(name string, choice *model.Choice[*model.Activation]) error {
	data := make([]byte, 0, 8*len(choice.Idx))
	for _, e := range choice.Idx {
		data = binary.LittleEndian.AppendUint64(data, uint64(e))
	}
	r.Replaced[name] = tensor.Tensor{DType: tensor.I64, Shape: r.Manifest.Tensors[name].Shape, Data: data}
	return nil
}

// wrongMixture computes a mixture with one operation in another's place, where it is set.
type wrongMixture struct {
	*model.Plain
	scale    func(p *model.Plain, x *model.Activation, factor float32) *model.Activation
	addBias  func(p *model.Plain, x *model.Activation, bias *model.Weight) *model.Activation
	sigmoid  func(p *model.Plain, x *model.Activation) *model.Activation
	experts  int // more have no part in the sum
	plainAct bool
}

func (w wrongMixture) Scale(x *model.Activation, factor float32) *model.Activation {
	if w.scale != nil {
		return w.scale(w.Plain, x, factor)
	}
	return w.Plain.Scale(x, factor)
}

func (w wrongMixture) AddBias(x *model.Activation, bias *model.Weight) *model.Activation {
	if w.addBias != nil {
		return w.addBias(w.Plain, x, bias)
	}
	return w.Plain.AddBias(x, bias)
}

func (w wrongMixture) Sigmoid(x *model.Activation) *model.Activation {
	if w.sigmoid != nil {
		return w.sigmoid(w.Plain, x)
	}
	return w.Plain.Sigmoid(x)
}

func (w wrongMixture) SiLU(x *model.Activation, alpha float32) *model.Activation {
	if w.plainAct {
		alpha = 1
	}
	return w.Plain.SiLU(x, alpha)
}

func (w wrongMixture) Multiply(a, b *model.Activation, shift float32) *model.Activation {
	if w.plainAct {
		shift = 0
	}
	return w.Plain.Multiply(a, b, shift)
}

func (w wrongMixture) Combine(weight *model.Activation, parts []model.Part[*model.Activation],
	order config.RoutedSum) *model.Activation {
	if w.experts > 0 {
		parts = slices.DeleteFunc(slices.Clone(parts), func(p model.Part[*model.Activation]) bool { return p.Expert >= w.experts })
	}
	return w.Plain.Combine(weight, parts, order)
}

// TestBlocksOfOtherRules: a mistake in a rule that no key of the config is for is named, too.
func TestBlocksOfOtherRules(t *testing.T) {
	normed := wrongMixture{scale: func(p *model.Plain, x *model.Activation, factor float32) *model.Activation {
		return p.Scale(p.Normalise(x, model.Divisor{Eps: 1e-20}), factor)
	}}
	byScores := wrongMixture{addBias: func(p *model.Plain, x *model.Activation, bias *model.Weight) *model.Activation {
		return p.AddBias(p.Sigmoid(x), bias)
	}}
	for _, x := range []struct {
		family, cause, stage string
		wrong                func(m *model.DeepseekMoE) wrongMixture
	}{
		{"longcat-flash", "norm-topk", pack.TopKWeight, func(*model.DeepseekMoE) wrongMixture { return normed }},
		{"longcat-flash", "zero-experts", pack.ExpertsOutput, func(m *model.DeepseekMoE) wrongMixture {
			return wrongMixture{experts: len(m.Experts)}
		}},
		{"kolibri1", "router-bias", pack.TopKIdx, func(*model.DeepseekMoE) wrongMixture { return byScores }},
		{"kolibri1", "bias-leak", pack.TopKWeight, func(m *model.DeepseekMoE) wrongMixture {
			return wrongMixture{sigmoid: func(p *model.Plain, x *model.Activation) *model.Activation {
				return p.Sigmoid(p.AddBias(x, &m.Gate.EScoreCorrectionBias))
			}}
		}},
		{"kolibri1", "bias-leak", pack.TopKWeight, func(m *model.DeepseekMoE) wrongMixture {
			return wrongMixture{sigmoid: func(p *model.Plain, x *model.Activation) *model.Activation {
				return p.AddBias(x, &m.Gate.EScoreCorrectionBias)
			}}
		}},
		{"minimax-m3", "activation", pack.ExpertsOutput, func(*model.DeepseekMoE) wrongMixture { return wrongMixture{plainAct: true} }},
		{"qwen3-next", "shared-experts", "mlp.output", withoutShared}, {"nemotron-h", "shared-experts", "mlp.output", withoutShared},
		{"step3p7", "shared-experts", "mlp.output", withoutShared}, {"laguna", "shared-experts", "mlp.output", withoutShared},
		{"afmoe", "shared-experts", "mlp.output", withoutShared}, {"minimax-m3", "shared-experts", "mlp.output", withoutShared},
		{"mistral4", "shared-experts", "mlp.output", withoutShared}, {"hy-v4", "shared-experts", "mlp.output", withoutShared},
	} {
		c, p := open(t, "blocks/"+x.family+"/golden-f32")
		l := p.Manifest.Block.Layers[0]
		in, err := p.Input()
		require.NoError(t, err)
		taken, err := p.Float32s(pack.StageOf(l, pack.AttentionNorm))
		require.NoError(t, err)
		own, err := c.Config.Override(nil)
		require.NoError(t, err)
		m, err := model.Load(own, c)
		require.NoError(t, err)
		p.Replaced = map[string]tensor.Tensor{}
		wrong := x.wrong(m.Layer(l).MoE)
		if m.Layer(l).MoE.SharedExperts == nil {
			own.MoE.NSharedExperts = 0
		}
		wrong.Plain = model.NewPlain(model.Options{})
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: wrong, Trace: planted{p}}
		_, err = net.Layer(context.Background(), l, &model.Activation{Shape: []int{in.Batch, in.Seq, c.Config.HiddenSize},
			Values: taken, DType: tensor.F32})
		require.NoError(t, err)
		r := run(t, c.Config, c, p, verify.Options{})
		name := x.family + " " + x.cause
		require.Equal(t, report.Fail, r.Verdict, name)
		assert.Equal(t, pack.StageOf(l, x.stage), *r.FirstDivergence, name)
		if assert.NotEmpty(t, r.Causes, name) {
			assert.Equal(t, x.cause, r.Causes[0].ID, name)
		}
	}
}

// withoutShared takes the shared experts out of a mixture.
func withoutShared(m *model.DeepseekMoE) wrongMixture {
	m.SharedExperts = nil
	return wrongMixture{}
}

// TestFaultyBlocks: a mixture that was computed with a mistake fails at its stage, and the mistake is named.
func TestFaultyBlocks(t *testing.T) {
	for family, x := range map[string]struct{ key, value, stage, cause string }{
		"laguna":        {"moe_router_logit_softcapping", "0.0", "mlp.gate.logits", "logit-softcap"},
		"beam":          {"routed_scaling_factor", "1.0", "mlp.output", "routed-scale"},
		"glm5-next":     {"swiglu_limit", "1e9", "mlp.experts.output", "swiglu-clamp"},
		"minimax-m3":    {"swiglu_limit", "1e9", "mlp.experts.output", "swiglu-clamp"},
		"nemotron-h":    {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"longcat-flash": {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
		"kolibri1":      {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
	} {
		c, p := open(t, "blocks/"+family+"/golden-f32")
		l := p.Manifest.Block.Layers[0]
		in, err := p.Input()
		require.NoError(t, err)
		taken, err := p.Float32s(pack.StageOf(l, pack.AttentionNorm))
		require.NoError(t, err)
		changed, err := c.Config.Override(map[string]jsontext.Value{x.key: jsontext.Value(x.value)})
		require.NoError(t, err)
		m, err := model.Load(changed, c)
		require.NoError(t, err)
		p.Replaced = map[string]tensor.Tensor{}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: model.NewPlain(model.Options{}), Trace: planted{p}}
		_, err = net.Layer(context.Background(), l, &model.Activation{Shape: []int{in.Batch, in.Seq, changed.HiddenSize},
			Values: taken, DType: tensor.F32})
		require.NoError(t, err)
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, family)
		assert.Equal(t, pack.StageOf(l, x.stage), *r.FirstDivergence, family)
		if assert.NotEmpty(t, r.Causes, family) {
			assert.Equal(t, x.cause, r.Causes[0].ID, family)
		}
	}
}
