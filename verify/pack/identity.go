package pack

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model/table"
)

// Whether a pack was recorded from the model that it is held against.

// CheckFamily refuses a checkpoint with another table of weights than that of the one that the pack was recorded from.
func (p *Pack) CheckFamily(c *config.Config) error {
	class := p.Manifest.Reference.Model
	modelTypes := config.OfClass(class)
	switch {
	case slices.Contains(modelTypes, c.ModelType):
		if c.Rules().Attention.AbsorbsKVB && c.LatentAttention() && p.Manifest.ComputeDType != "float32" {
			return p.Fault("", fmt.Sprintf("it was recorded in %s: the latent attention of %s's code multiplies kv_b_proj into "+
				"queries and context, and what it rounds there is not computed here; record it in float32",
				p.Manifest.ComputeDType, c.ModelType))
		}
	case len(modelTypes) > 0 && !slices.Contains(table.FamilyOf(c).ModelTypes, modelTypes[0]):
		return p.Fault("", fmt.Sprintf("the pack is not of this model: %s recorded it, the class of model_type %s; the "+
			"checkpoint's model_type is %s", class, modelTypes[0], c.ModelType))
	}
	return nil
}

// CheckShape refuses a checkpoint whose weights have other shapes than those that the pack was
// recorded from. c is the config with which the reference ran.
func (p *Pack) CheckShape(c *config.Config) error {
	recorded, err := p.RecordedConfig(c.Reference)
	switch {
	case err != nil:
		return err
	case recorded != nil && table.FamilyOf(recorded) != table.FamilyOf(c):
		return p.Fault("", fmt.Sprintf("the pack is not of this model: it was recorded from model_type %s; the checkpoint's is "+
			"%s", recorded.ModelType, c.ModelType))
	case recorded != nil && !sameShape(c, recorded):
		remedy := ""
		if c.MoE.NRoutedExperts < recorded.MoE.NRoutedExperts {
			remedy = "; dsmoe diff --keep-experts compares a pruned model with the whole one"
		}
		return p.Fault("", "the pack is not of this model: it was recorded from weights of other shapes: "+
			InWords(Differences(c, recorded))+remedy)
	}
	if recorded != nil {
		if err := p.checkChoices(recorded); err != nil {
			return err
		}
	}
	return p.checkWidths(c)
}

// checkChoices refuses a pack in which no choice of experts has as many as its own config says.
func (p *Pack) checkChoices(recorded *config.Config) error {
	other := ""
	for _, name := range slices.Sorted(maps.Keys(p.Manifest.Tensors)) {
		kind := Parse(name).Within
		switch shape := p.Manifest.Tensors[name].Shape; {
		case kind != TopKIdx:
		case shape[len(shape)-1] == recorded.MoE.NumExpertsPerTok:
			return nil
		case other == "":
			other = fmt.Sprintf("manifest.json contradicts itself: config has num_experts_per_tok %d, %s has the shape %v",
				recorded.MoE.NumExpertsPerTok, name, shape)
			if p.IsTrace() && shape[len(shape)-1] == recorded.MoE.NumExpertsPerTok+recorded.MoE.NSharedExperts {
				other += ": record without shared experts that are fused into routed ones"
			}
		}
	}
	if other == "" {
		return nil
	}
	return p.Fault("", other)
}

// RecordedConfig returns the config.json that the pack was recorded from, as config_overrides left
// it, under the rules of a reference; nil if the pack does not hold it.
func (p *Pack) RecordedConfig(r config.Reference) (*config.Config, error) {
	if p.Manifest.Config == nil {
		return nil, nil
	}
	c, err := config.Parse(bytes.NewReader(p.Manifest.Config))
	if err == nil {
		c, err = c.Override(p.Manifest.ConfigOverrides)
	}
	if err == nil {
		c, err = c.As(r)
	}
	if err != nil {
		return nil, p.Fault(manifestName, "config: "+err.Error())
	}
	return c, nil
}

// sameShape reports whether two configs of one family imply the same weights, but for a head, which
// may be tied in one and stored apart in the other.
func sameShape(a, b *config.Config) bool {
	of := func(c *config.Config) map[string]string {
		shapes := map[string]string{}
		for s := range table.FamilyOf(c).Slots(c) {
			if s.Name != table.HeadName {
				shapes[s.Name] = fmt.Sprint(s.Shape)
			}
		}
		return shapes
	}
	return maps.Equal(of(a), of(b))
}

// Differences lists the keys under which a config has another value than the recorded one.
func Differences(c, recorded *config.Config) []Difference {
	differ := []Difference{}
	for _, d := range config.Differences(c, recorded) {
		differ = append(differ, Difference{Key: d.Key, Checkpoint: setting(d.A), Pack: setting(d.B), Meaning: d.Meaning})
	}
	return differ
}

// setting is a value of config.json as reports print it.
func setting(v jsontext.Value) string {
	if v == nil {
		return "not set"
	}
	return string(v)
}

// InWords lists the keys that differ: "rope_scaling differs (pack null, here {…})".
func InWords(differ []Difference) string {
	var words []string
	for _, d := range differ {
		words = append(words, fmt.Sprintf("%s differs (pack %s, here %s)", d.Key, d.Pack, d.Checkpoint))
	}
	return strings.Join(words, ", ")
}

// checkWidths refuses a pack in which all stages of some weight's module, in whatever layer, are
// wider or narrower than the weight makes them.
func (p *Pack) checkWidths(c *config.Config) error {
	type kindWidths struct {
		fits         bool
		golden, slot string // the first that does not fit
	}
	kinds := map[string]*kindWidths{}
	for s := range table.FamilyOf(c).Slots(c) {
		name, width := moduleStage(c, s)
		e, ok := p.Manifest.Tensors[name]
		if !ok || width == 0 {
			continue
		}
		kind := Parse(name).Within
		k := kinds[kind]
		if k == nil {
			k = &kindWidths{}
			kinds[kind] = k
		}
		if e.Shape[len(e.Shape)-1] == width {
			k.fits = true
		} else if k.golden == "" {
			k.golden = fmt.Sprintf("%s is %d wide in the pack, and %d here", name, e.Shape[len(e.Shape)-1], width)
			k.slot = fmt.Sprintf("%s %v", s.Name, s.Shape)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if k := kinds[kind]; !k.fits {
			return p.Fault("", fmt.Sprintf("the pack is not of this model: %s, as %s makes it", k.golden, k.slot))
		}
	}
	return nil
}

// moduleStage returns the stage that a module with this weight gives by itself, and its width; 0 if
// there is none.
func moduleStage(c *config.Config, s table.Slot) (stage string, width int) {
	switch stage = s.Stage(); {
	case stage == "" || s.Expert >= 0:
		return "", 0
	case s.Row.LookedUp():
		return stage, s.Shape[1]
	case s.Is(table.Attention, table.OAProj): // a row for each group of heads
		return stage, s.Shape[0] / c.Windows.OGroups
	}
	return stage, s.Shape[0]
}

// Difference is a key whose values differ between the checkpoint's config.json and the one that the pack was
// recorded from.
type Difference struct {
	Key        string `json:"key"`        // of config.json
	Checkpoint string `json:"checkpoint"` // its value there, as JSON, defaults filled in
	Pack       string `json:"pack"`       // the same of the config.json that the pack was recorded from
	Meaning    bool   `json:"meaning"`    // decides what the model computes, or its loss
}

// Predictions returns how many prediction layers there are up to the last that the pack has a
// stage of.
func Predictions(c *config.Config, pack *Pack) (n int) {
	for name := range pack.Manifest.Tensors {
		if layer := Parse(name).Layer; layer < c.NumHiddenLayers+c.NumNextNPredictLayers {
			n = max(n, layer-c.NumHiddenLayers+1)
		}
	}
	return n
}
