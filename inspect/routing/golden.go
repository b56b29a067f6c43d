package routing

// Routing as a golden pack has it.

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// The stages of a gate behind "model.layers.N.".
const (
	gateStage   = "mlp.gate."
	gateLogits  = gateStage + "logits"      // [tokens, n_routed_experts]
	gateIDs     = gateStage + "topk_idx"    // [tokens, num_experts_per_tok]
	gateWeights = gateStage + "topk_weight" // as topk_idx
)

// stageName returns the name of a stage of a layer.
func stageName(layer int, stage string) string {
	return fmt.Sprintf("model.layers.%d.%s", layer, stage)
}

// packTensors is the tensors of a golden pack. Its errors name the pack.
type packTensors interface {
	Tensors() iter.Seq[tensor.Info]          // in any order
	Ints(name string) ([]int, error)         // a tensor of I64
	Float32s(name string) ([]float32, error) // one of floats
}

// Golden is a golden pack, and the model that it records, as far as it is known.
type Golden struct {
	Path      string         // of the pack, as the user gave it
	Recording packTensors    // its tensors
	Input     *model.Input   // its tokens
	Model     string         // path of Config and Weights, as the user gave it
	Config    *config.Config // of the reference's run; nil if not known
	Weights   weights.Source // of the model, for the biases of noaux_tc; nil if not known
}

// OfGolden reads the choices of a pack. Margins need the pack's logits and the config, under noaux_tc the gates' biases
// too; gate masses need topk_weight. Numbers that lack these are named in Missing.
func OfGolden(g Golden, o Options) (*Report, error) {
	p := &goldenPack{Golden: g, stages: map[int]map[string]tensor.Info{}, Report: newReport(g.Path, fromGolden, o)}
	if err := p.countTokens(g.Input); err != nil {
		return nil, err
	}
	if p.Config != nil && p.Config.ChoosesByBias() && g.Weights != nil {
		p.biases = weights.New(g.Config, g.Weights)
	}
	for info := range p.Recording.Tensors() { // the stages of the gates
		at := strings.Index(info.Name, gateStage)
		l := table.PlaceOf(nil, info.Name).Layer
		if at < 0 || l < 0 || info.Name != stageName(l, info.Name[at:]) {
			continue
		}
		if p.stages[l] == nil {
			p.stages[l] = map[string]tensor.Info{}
		}
		p.stages[l][info.Name[at:]] = info
	}
	if err := p.measure(o); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(g.Path), err)
	}
	p.sayMissing(o)
	for _, l := range slices.Sorted(maps.Keys(p.stages)) {
		if !o.Layers.Has(l) || !p.has(l, gateIDs) {
			continue
		}
		t, err := p.layer(l, o.Choices)
		if err != nil {
			return nil, err
		}
		p.Layers = append(p.Layers, t.report(o))
	}
	return p.Report, nil
}

// goldenPack is the state of one OfGolden run.
type goldenPack struct {
	Golden
	*Report
	stages map[int]map[string]tensor.Info // of the gates, by layer and stage
	biases *weights.Set                   // nil if not needed, or not known
}

func (p *goldenPack) has(layer int, stage string) bool {
	_, ok := p.stages[layer][stage]
	return ok
}

// measure finds the number of experts, and checks that all stages agree and that the selected layers and experts exist.
func (p *goldenPack) measure(o Options) error {
	c := p.Config
	if c != nil {
		p.Experts, p.PerToken = c.Choices(), c.MoE.NumExpertsPerTok
	}
	var routed []int
	for _, l := range slices.Sorted(maps.Keys(p.stages)) {
		if !p.has(l, gateIDs) {
			continue
		}
		routed = append(routed, l)
		var err error
		decoder := c == nil || l < c.NumHiddenLayers && c.IsMoE(l)
		if !decoder && (l < c.NumHiddenLayers || l >= c.NumHiddenLayers+c.NumNextNPredictLayers) {
			err = fmt.Errorf("%s: by the config this layer has no routed experts", stageName(l, gateIDs))
		}
		if err = errors.Join(err, p.shapes(l)); err != nil {
			return err
		}
	}
	if routed == nil {
		return fmt.Errorf("no %s of any layer: the pack does not say which experts were chosen", gateIDs)
	}
	if p.Experts == 0 {
		return fmt.Errorf("no %s: how many experts there are is not known without the model's config", gateLogits)
	}
	return o.check("the pack", routed, p.Experts)
}

// byTable reports whether a table gives each token its experts in a layer.
func (p *goldenPack) byTable(l int) bool { return p.Config != nil && p.Config.Hashes(l) }

// shapes compares the shapes of a layer's stages.
func (p *goldenPack) shapes(l int) error {
	ids := p.stages[l][gateIDs]
	if len(ids.Shape) != 2 || ids.Shape[1] < 1 {
		return fmt.Errorf("%s: shape %v, [tokens, num_experts_per_tok] expected", ids.Name, ids.Shape)
	}
	if rows := ids.Shape[0]; rows < 1 || rows%p.Input.Batch != 0 || rows > len(p.Input.InputIDs) {
		return fmt.Errorf("%s: shape %v, the input is [%d %d]", ids.Name, ids.Shape, p.Input.Batch, p.Input.Seq)
	}
	if w, ok := p.stages[l][gateWeights]; ok && !slices.Equal(w.Shape, ids.Shape) {
		return fmt.Errorf("%s: shape %v, that of %s is %v", w.Name, w.Shape, gateIDs, ids.Shape)
	}
	if p.PerToken == 0 {
		p.PerToken = ids.Shape[1]
	}
	if ids.Shape[1] != p.PerToken {
		return fmt.Errorf("%s: %d experts for each token, not %d", ids.Name, ids.Shape[1], p.PerToken)
	}
	logits, ok := p.stages[l][gateLogits]
	if !ok {
		return nil
	}
	if len(logits.Shape) != 2 || logits.Shape[0] != ids.Shape[0] {
		return fmt.Errorf("%s: shape %v, [%d, n_routed_experts] expected", logits.Name, logits.Shape, ids.Shape[0])
	}
	if p.Experts == 0 {
		p.Experts = logits.Shape[1]
	}
	if logits.Shape[1] != p.Experts {
		return fmt.Errorf("%s: %d experts, not %d", logits.Name, logits.Shape[1], p.Experts)
	}
	return nil
}

// sayMissing notes the numbers that the pack and the model do not give.
func (p *goldenPack) sayMissing(o Options) {
	var silent, unweighted, unscored, tables []int
	layers := slices.Collect(maps.Keys(p.stages))
	if p.Config != nil {
		layers = append(layers, p.Config.MoELayers()...)
	}
	slices.Sort(layers)
	for _, l := range slices.Compact(layers) {
		switch {
		case !o.Layers.Has(l):
		case !p.has(l, gateIDs):
			silent = append(silent, l)
		default:
			if !p.has(l, gateWeights) {
				unweighted = append(unweighted, l)
			}
			switch {
			case p.byTable(l):
				tables = append(tables, l)
			case !p.has(l, gateLogits):
				unscored = append(unscored, l)
			}
		}
	}
	p.lack(silent, "the pack has no %s: nothing is known of them", gateIDs)
	p.lack(unweighted, "the pack has no %s: no gate weights", gateWeights)
	p.lack(unscored, "the pack has no %s: no margins", gateLogits)
	p.lack(tables, "%s gives each token its experts: no margins", gateStage+"tid2eid")
	if reason := p.unscored(); reason != "" {
		p.Missing = append(p.Missing, "margins: "+reason)
	}
}

// unscored says why selection scores cannot be made of logits; "" if they can.
func (p *goldenPack) unscored() string {
	switch {
	case p.Config == nil:
		return "they need the model's config (--config)"
	case p.Config.ChoosesByBias() && p.biases == nil:
		return "experts are chosen with e_score_correction_bias, which is a weight of the checkpoint"
	}
	return ""
}

// layer counts the choices of a layer, and calls choices with each unless it is nil.
func (p *goldenPack) layer(l int, choices func(Choice) error) (*layerTally, error) {
	name := stageName(l, gateIDs)
	ids, err := p.Recording.Ints(name)
	if err != nil {
		return nil, err
	}
	scores, err := p.scores(l)
	if err != nil {
		return nil, err
	}
	var weights []float32
	if p.has(l, gateWeights) {
		if weights, err = p.Recording.Float32s(stageName(l, gateWeights)); err != nil {
			return nil, err
		}
	}
	t := newTally(l, p.Experts, p.PerToken, weights != nil, scores != nil)
	t.byTable = p.byTable(l)
	n := len(ids) / p.PerToken / p.Input.Batch // rows of a sequence; a row of a prediction layer is about two tokens
	for row := range len(ids) / p.PerToken {
		first := row/n*p.Input.Seq + row%n
		if p.Input.IsPadding(first) || p.Input.IsPadding(first+p.Input.Seq-n) {
			continue
		}
		from, to := row*p.PerToken, (row+1)*p.PerToken
		c := Choice{Layer: l, Sequence: row / n, Position: row % n, Token: p.Input.InputIDs[first], Experts: ids[from:to]}
		err := t.choose(c.Experts)
		if err == nil && weights != nil {
			c.Weights = weights[from:to]
			err = t.weigh(c.Experts, c.Weights)
		}
		if err == nil && scores != nil {
			err = t.score(c.Experts, scores.Row(row))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: row %d: %w", text.Quote(p.Report.Path), name, row, err)
		}
		if choices != nil {
			if err := choices(c); err != nil {
				return nil, err
			}
		}
	}
	if t.tokens == 0 {
		return nil, fmt.Errorf("%s: %s: all tokens are padding", text.Quote(p.Report.Path), name)
	}
	return t, nil
}

// scores returns a layer's selection scores; nil if they are not known.
func (p *goldenPack) scores(l int) (*model.Activation, error) {
	info, ok := p.stages[l][gateLogits]
	if !ok || p.unscored() != "" || p.byTable(l) {
		return nil, nil
	}
	values, err := p.Recording.Float32s(info.Name)
	if err != nil {
		return nil, err
	}
	gate := &model.MoEGate{}
	if p.biases != nil {
		name := stageName(l, gateStage+"e_score_correction_bias")
		w := p.biases.Find(name)
		if w == nil {
			return nil, fmt.Errorf("%s: tensor %s: not there, but experts are chosen with it", text.Quote(p.Model), name)
		}
		whole := len(w.Shape) > 0 && w.Shape[len(w.Shape)-1] == p.Experts && w.Len() == p.Experts
		if _, ok := w.DType.Format(); !ok || w.Scaled() || !whole { // ERNIE-4.5's is [1, experts]
			return nil, fmt.Errorf("%s: tensor %s: %s %v, a number for each of %d experts expected",
				text.Quote(p.Model), name, w.DType, w.Shape, p.Experts)
		}
		view, err := w.View(p.Golden.Weights)
		if err != nil {
			return nil, err
		}
		gate.EScoreCorrectionBias = model.Weight{Name: name, Tensor: view}
	}
	return model.Choose(p.Config, gate, &model.Activation{Shape: info.Shape, Values: values,
		DType: info.DType}).Scores, nil
}
