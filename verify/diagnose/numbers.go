package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Numbers of config.json that the reference ran with: from the pack's config, or solved for. To solve for a number, the
// failed stage is computed with several values; the one that brings it nearest to the golden, rounded to few digits, is
// tried.

// recordedMistakes are the differences of the config from the pack's, each by itself, and all of them together.
func (f *Failure) recordedMistakes() (single, together []mistake) {
	c := f.Model.Config
	recorded, err := f.Pack.RecordedConfig(c.Reference)
	if err != nil || recorded == nil {
		return nil, nil
	}
	all, words := *c, []string{}
	for _, field := range config.Fields() {
		one := *c
		from, to := reflect.ValueOf(recorded).Elem().FieldByIndex(field.Index), reflect.ValueOf(&one).Elem().FieldByIndex(field.Index)
		if reflect.DeepEqual(from.Interface(), to.Interface()) {
			continue
		}
		to.Set(from)
		differ := slices.DeleteFunc(config.Differences(c, &one), func(d config.Difference) bool { return !d.Meaning })
		if len(differ) == 0 {
			continue
		}
		reflect.ValueOf(&all).Elem().FieldByIndex(field.Index).Set(from)
		d := differ[0]
		words = append(words, fmt.Sprintf("%s %s, here it is %s", d.Key, asWritten(d.B), asWritten(d.A)))
		if _, err := c.Override(map[string]jsontext.Value{d.Key: d.B}); err == nil { // else it is none by itself
			single = append(single, f.configMistake(causeOf(c, d.Key), &one, "the reference ran with "+words[len(words)-1]))
		}
	}
	if len(words) > 1 {
		together = []mistake{f.configMistake("config-values", &all, "the reference ran with "+strings.Join(words, "; "))}
	}
	return single, together
}

// asWritten writes a value of config.json, a number as Go does.
func asWritten(v []byte) string {
	if x, err := strconv.ParseFloat(string(v), 64); err == nil {
		return fmt.Sprintf("%g", x)
	}
	return string(v)
}

// configMistake is a config that the reference ran with.
func (f *Failure) configMistake(id string, c *config.Config, words string) mistake {
	return mistake{id: id, kinds: []string{f.kind()}, undo: func(x *Trial) string {
		x.Config = *c
		return words
	}}
}

// causeOf returns the id of the mistake that a key of config.json has another value, as c's family calls the key.
func causeOf(c *config.Config, key string) string {
	for _, known := range []struct{ key, id string }{
		{"rms_norm_eps", "norm-eps"}, {"rope_theta", "rope-theta"}, {"compress_rope_theta", "rope-theta"},
		{"rope_scaling.mscale", "yarn-mscale"}, {"rope_scaling.mscale_all_dim", "yarn-mscale"},
		{"routed_scaling_factor", "routed-scale"}, {"aux_loss_alpha", "aux-loss-alpha"}, {"seq_aux", "aux-loss-form"},
		{"norm_topk_prob", "norm-topk"}, {"num_experts_per_tok", "experts-per-token"}, {"n_group", "group-count"},
		{"topk_group", "topk-group"}, {"num_attention_heads", "head-count"}, {"rope_interleave", "rope-layout"},
		{"moe_norm_min", "norm-topk"},
		{"layer_types", "sliding-window"},
		{"index_topk", "index-topk"}, {"sliding_window", "sliding-window"}, {"hc_sinkhorn_iters", "sinkhorn-iterations"},
	} {
		if key == known.key || key == c.Key(known.key) {
			return known.id
		}
	}
	if strings.HasPrefix(key, "rope_scaling") {
		return "rope-scaling"
	}
	return "config-values"
}

// number is a number that may be solved for.
type number struct {
	key     string
	ours    float64 // its value here
	mistake func(value float64) mistake
	starts  []float64 // values to begin with
	smooth  bool      // the stage depends on it continuously
	digits  int       // most that it is written with
}

// inConfig is a number of config.json. The number stands in base, whose rope_scaling may be one to try.
func (f *Failure) inConfig(n config.Number, base *config.Config, starts []float64, smooth bool, digits int) number {
	return number{n.Key, n.Value(base), func(value float64) mistake {
		c := n.With(base, value)
		if base != f.Model.Config {
			return f.configMistake(causeOf(f.Model.Config, n.Key), c, missingScaling(c.RoPE.RopeScaling))
		}
		return f.configMistake(causeOf(f.Model.Config, n.Key), c,
			fmt.Sprintf("the reference ran with %s %g, here it is %g", n.Key, value, n.Value(base)))
	}, starts, smooth, digits}
}

// shownNumbers are those that the failed stage may show.
func (f *Failure) shownNumbers() (list []number) {
	c := f.Model.Config
	isNorm := func(w string) bool { return strings.HasSuffix(w, "norm.weight") }
	if slices.ContainsFunc(f.Weights, isNorm) || slices.Contains(streamStages, f.kind()) {
		list = append(list, f.inConfig(config.NormEps, c, powers(1e-12, 10, 10), true, 2))
	}
	if !slices.Contains(rotationStages, f.kind()) {
		return list
	}
	attentionFails := slices.ContainsFunc(f.Checks, func(c report.Check) bool {
		return c.Verdict == report.Fail && strings.HasPrefix(c.Stage().Within, "self_attn.")
	})
	compressed := strings.Contains(f.Kind, "compress") || c.Windowed() && f.Layer >= 0 && c.CompressRate(f.Layer) > 0
	for _, n := range config.RotationNumbers(c, compressed) {
		around := powers(n.Value(c)/32, 2, 11)
		s := c.RoPE.RopeScaling // some numbers of YaRN change the scale of scores, beside RoPE's tables
		scales := s != nil && s.MScaleAllDim != 0 &&
			(n.Key == "rope_scaling.factor" || n.Key == "rope_scaling.mscale_all_dim")
		if pack.Parse(f.Name).IsTable() && scales != attentionFails {
			continue
		}
		switch n.Key {
		case "rope_theta", "compress_rope_theta":
			list = append(list, f.inConfig(n, c, append(powers(1e3, 4, 10), usual[n.Key]...), true, 4))
		case "rope_scaling.factor":
			list = append(list, f.inConfig(n, c, around, true, 4))
		case "rope_scaling.mscale", "rope_scaling.mscale_all_dim":
			list = append(list, f.inConfig(n, c, powers(n.Value(c)/4, 2, 5), true, 3))
		default: // rounded to whole pairs
			if n.Key == "rope_scaling.original_max_position_embeddings" {
				around = slices.DeleteFunc(around, func(v float64) bool { return v < 2 || v != math.Trunc(v) })
			}
			list = append(list, f.inConfig(n, c, around, false, 0))
		}
	}
	for _, kind := range []string{"linear", "dynamic"} {
		if c.RoPE.RopeScaling == nil && !c.Windowed() && (kind == "linear" || f.In.Seq > c.RoPE.MaxPositionEmbeddings) {
			scaled := *c
			scaled.RoPE.RopeScaling = &config.RopeScaling{Type: kind, Factor: 1}
			list = append(list, f.inConfig(config.RotationNumbers(&scaled, false)[1], &scaled, powers(1, 2, 8), true, 4))
		}
	}
	return list
}

// usual are values that most configs have.
var usual = map[string][]float64{"rms_norm_eps": {1e-6, 1e-5}, "rope_theta": {1e4, 5e4, 1e6}, "compress_rope_theta": {1.6e5},
	"rope_scaling.beta_fast": {32}, "rope_scaling.beta_slow": {1}, "rope_scaling.factor": {40, 4, 16, 32, 64}}

// rank is 0 for a value that most configs have, else 1.
func (n number) rank(v float64) int {
	if slices.Contains(usual[n.key], v) {
		return 0
	}
	return 1
}

// powers are n numbers from first on, each by times the one before.
func powers(first, by float64, n int) (list []float64) {
	for range n {
		list = append(list, first)
		first *= by
	}
	return list
}

// numberMistakes are the values of numbers that bring the failed stage nearest to the golden, the nearest first.
func (f *Failure) numberMistakes(ctx context.Context, numbers []number) (list []mistake, err error) {
	if f.Want == nil || !f.isFinite() || len(numbers) == 0 {
		return nil, nil
	}
	type fitted struct {
		number
		value, left float64
	}
	var found []fitted
	for _, n := range numbers {
		value, left, err := f.solve(ctx, n)
		if err != nil {
			return nil, err
		}
		if n.key == "rope_scaling.factor" && value <= 1 { // no scaling, which has a name of its own
			continue
		}
		if f.isNearer(left, f.left(f.Unrounded)) && value != n.ours {
			found = append(found, fitted{n, value, left})
		}
	}
	least := math.Inf(1)
	for _, x := range found {
		least = min(least, x.left)
	}
	slices.SortStableFunc(found, func(a, b fitted) int { // numbers that nearly everybody writes come first
		return cmp.Or(cmp.Compare(a.rank(a.value), b.rank(b.value)), cmp.Compare(a.left, b.left))
	})
	if f.Model.Config.Windowed() && slices.Contains(rotationStages, f.kind()) {
		list = append(list, mistake{id: "rope-tables", kinds: []string{f.kind()}, undo: undoTables})
	}
	for _, x := range found {
		if f.isNearer(least, x.left) {
			continue
		}
		m := x.mistake(x.value)
		m.unless = "rope-tables"
		if x.key == "rms_norm_eps" { // where rounding leaves it open
			for _, value := range usual[x.key] {
				if value != x.ours {
					list = append(list, x.mistake(value))
				}
				if f.How != nil { // llama.cpp has one eps for all norms
					everywhere := x.mistake(value)
					everywhere.undo = func(trial *Trial) string {
						said := x.mistake(value).undo(trial)
						if undoLatentEps(true, true)(trial) == "" {
							return ""
						}
						return said + ", and norms inside latent attention have it, too"
					}
					list = append(list, everywhere)
				}
			}
			m.unless = "norm-eps"
		}
		list = append(list, m)
	}
	return list, nil
}

// isNearer reports whether a sum of squares is less than another by more than chance explains: by 8 standard deviations
// of a number's fit, as large as they are at best.
func (f *Failure) isNearer(a, b float64) bool {
	return a+bounds.Lambda*bounds.Lambda*max(1, a/float64(len(f.Want))) < b
}

// solve returns the value of a number, written with few digits, that brings the failed stage nearest to the golden, and
// the sum of squares that is left.
func (f *Failure) solve(ctx context.Context, n number) (value, left float64, err error) {
	value, left = n.ours, f.left(f.Unrounded)
	// try returns the failed stage with another number, before its last rounding; nil if not reached or not finite
	try := func(v float64) (got []float32, err error) {
		x := f.NewTrial()
		n.mistake(v).undo(x)
		x.Proves = func(y *bounds.Value, first int) bool {
			for _, row := range f.Rows {
				got = append(got, y.Row(row-first)...)
			}
			return false
		}
		if _, err = f.Rerun(ctx, x, []string{f.Name}); !bounds.AllFinite(got) {
			got = nil
		}
		return got, err
	}
	far := func(v float64) float64 { return math.Abs(math.Log(v / n.ours)) }
	slices.SortFunc(n.starts, func(a, b float64) int { return cmp.Compare(far(a), far(b)) }) // of equals the nearest counts
	shows := false
	for i, v := range n.starts {
		got, err := try(v)
		if shows = shows || !slices.Equal(got, f.Unrounded); err != nil || i == 2 && !shows {
			return value, left, err
		}
		if l := f.left(got); l < left {
			value, left = v, l
		}
	}
	if !n.smooth || !(value > 0) {
		return value, left, nil
	}
	start, leaves := value, left
	nudge, spread := 1e-3, 0.0 // by which the derivative is measured; standard deviation of the number's logarithm
	if f.Got.DType != tensor.F32 {
		nudge = 0.05 // many elements round to the next number then
	}
	for range mostSteps {
		var got [3][]float32
		for i, by := range []float64{1, 1 + nudge, 1 / (1 + nudge)} {
			if got[i], err = try(value * by); err != nil || got[i] == nil {
				return value, math.Inf(1), err
			}
		}
		rd, dd := 0.0, 0.0
		for i, w := range f.residualWeights() {
			d := (float64(got[1][i]) - float64(got[2][i])) / (2 * math.Log1p(nudge))
			rd, dd = rd+w*d*(float64(f.Want[i])-float64(got[0][i])), dd+w*d*d
		}
		if dd == 0 {
			return value, math.Inf(1), nil
		}
		step := min(max(rd/dd, -1), 1)
		value, spread = value*math.Exp(step), 1/math.Sqrt(dd)
		if math.Abs(step) < max(spread, nudge*nudge) {
			break
		}
	}
	solved, left := value, math.Inf(1)
	for digits := 1; digits <= n.digits; digits++ {
		v := written(solved, digits)
		if math.Abs(math.Log(v/solved)) > leastCertain*spread+40*nudge*nudge {
			continue
		}
		got, err := try(v)
		if err != nil {
			return value, left, err
		}
		if l := f.left(got); f.isNearer(l, left) {
			value, left = v, l
		}
	}
	if f.isNearer(leaves, left) {
		return start, leaves, nil
	}
	return value, left, nil
}

const mostSteps = 8 // of Newton's method

// residualWeights returns the weight of each element in a sum of squares: 1 over its variance, with the golden's
// rounding.
func (f *Failure) residualWeights() []float64 {
	if f.weights == nil {
		p := bounds.PrecisionOf(f.Got.DType)
		f.weights = make([]float64, len(f.Want))
		size := 0.0
		for _, g := range f.Want {
			size += bounds.Sq(float64(g)) / float64(len(f.Want))
		}
		for i, g := range f.Want {
			unit := p.Ulp(max(math.Abs(float64(g)), math.Sqrt(size)/256))
			f.weights[i] = f.RowWeights[i/f.Got.Width()] / (bounds.Sq(f.Deviations[i]) + bounds.Sq(unit)/12)
		}
	}
	return f.weights
}

// left is the sum of the squares of the golden less y, in standard deviations; infinite without y.
func (f *Failure) left(y []float32) (sum float64) {
	if y == nil {
		return math.Inf(1)
	}
	for i, w := range f.residualWeights() {
		sum += w * bounds.Sq(float64(f.Want[i])-float64(y[i]))
	}
	return sum
}

// streamStages are the stages that first show the eps of the norm before DeepSeek-V4's streams are mixed.
var streamStages = []string{"attn_hc.pre", "attn_hc.post", "attn_hc.comb", "ffn_hc.pre", "ffn_hc.post", "ffn_hc.comb",
	"model.hc_head.pre"}

// rotationStages show numbers of RoPE.
var rotationStages = slices.Concat(ropeStages, []string{"self_attn.query", "self_attn.kv", "self_attn.o_a_proj.input",
	"self_attn.compressor.indexer.q", "model.rotary_emb.main.cos", "model.rotary_emb.compress.cos", pack.IndexerKeys},
	entriesOf("entries"))
