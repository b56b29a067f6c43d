package verify

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// training are the keys of config.json that mean nothing but in training, so that a pack may
// be made with others than a checkpoint's.
var training = []string{"aux_loss_alpha", "seq_aux"}

// untied is the key that tells a head stored apart from one that is the embedding: the numbers of either are checked.
const untied = "tie_word_embeddings"

// settingsOf compares a checkpoint's config with the config c that the reference ran with, and with the config
// that the pack was recorded from.
func settingsOf(stored, c *config.Config, golden *pack.Pack, in *model.Input, o *Options) report.Settings {
	s := report.Settings{Overridden: []report.Override{}, Unexercised: unexercised(c, golden, in), Tried: triedNumbers(c, o.Mode),
		Differ: []pack.Difference{}}
	if recorded, err := golden.RecordedConfig(c.Reference); err == nil &&
		recorded != nil { // checkShape has seen the error
		s.Differ = pack.Differences(c, recorded)
	} else if hash := golden.Manifest.Checkpoint["config.json"]; hash != "" && o.ConfigHash != "" {
		s.Unknown = hash != o.ConfigHash
	}
	if meaning := meaningful(s.Differ); len(meaning) > 0 {
		s.Origin = "the pack was recorded from another checkpoint or config: " + pack.InWords(meaning)
	} else if s.Unknown {
		s.Origin = "the pack was recorded from another config.json, by its hash, and does not hold that: which keys differ is " +
			"not known"
	}
	var values map[string]jsontext.Value
	_ = json.Unmarshal(stored.JSON(), &values) // config has parsed it
	ran := golden.Manifest.ConfigOverrides
	for _, key := range slices.Sorted(maps.Keys(ran)) {
		if sameEffect(stored, key, ran[key]) {
			continue
		}
		was := "not set"
		if v, ok := values[key]; ok {
			was = string(v)
		}
		s.Overridden = append(s.Overridden, report.Override{Key: key, Checkpoint: was, Reference: string(ran[key]),
			Training: slices.Contains(training, key)})
	}
	return s
}

// sameEffect reports whether setting a key to a value changes no field of c.
func sameEffect(c *config.Config, key string, value jsontext.Value) bool {
	changed, err := c.Override(map[string]jsontext.Value{key: value})
	if err != nil {
		return false // it takes other keys to be valid
	}
	a, b := reflect.ValueOf(*c), reflect.ValueOf(*changed)
	for i := range a.NumField() {
		if a.Type().Field(i).IsExported() && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			return false
		}
	}
	return true
}

// unexercised lists the keys of c that change nothing on the input.
func unexercised(c *config.Config, golden *pack.Pack, in *model.Input) []report.Unexercised {
	list := []report.Unexercised{}
	add := func(holds bool, key, format string, args ...any) {
		if holds {
			list = append(list, report.Unexercised{Key: key, Why: fmt.Sprintf(format, args...)})
		}
	}
	s := cmp.Or(c.RoPE.RopeScaling, c.RoPE.CompressRopeScaling, &config.RopeScaling{})
	add(s.Type == "dynamic" && in.Seq <= c.RoPE.MaxPositionEmbeddings, "rope_scaling",
		"dynamic scaling begins beyond %d positions, the pack has %d", c.RoPE.MaxPositionEmbeddings, in.Seq)
	add(s.Type == "yarn" && in.Seq <= s.OriginalMaxPositionEmbeddings, "max_position_embeddings",
		"the pack has %d positions, YaRN stretches %d", in.Seq, s.OriginalMaxPositionEmbeddings)
	add(c.MoE.NRoutedExperts > 0 && c.MoE.NumExpertsPerTok == c.MoE.NRoutedExperts, "num_experts_per_tok",
		"every token goes to all %d experts: nothing is chosen", c.MoE.NRoutedExperts)
	add(c.MoE.NRoutedExperts > 0 && c.MoE.NumExpertsPerTok == 1 && c.Router.NormTopKProb, "norm_topk_prob",
		"one expert per token is not normalised")
	add(c.HasIndexer() && !c.Windowed() && in.Seq <= c.Indexer.IndexTopK, "index_topk",
		"the pack has %d positions: every query attends to all keys that it sees", in.Seq)
	add(c.HasWindows() && in.Seq <= c.Windows.SlidingWindow, "sliding_window",
		"the pack has %d positions: every query's window holds all tokens before it", in.Seq)
	chooses := false
	for l := range c.NumHiddenLayers {
		rate := c.CompressRate(l)
		add(in.Seq < rate, "layer_types", "layer %d makes an entry of %d tokens, the pack has %d", l, rate, in.Seq)
		chooses = chooses || c.Overlaps(l) && in.Seq >= rate
	}
	add(chooses && in.Seq/c.Windows.CompressRateCSA <= c.Indexer.IndexTopK, "index_topk",
		"the pack has %d entries: every query attends to all that it sees", in.Seq/max(1, c.Windows.CompressRateCSA))
	add(golden.Manifest.Mode != "train" && c.Router.AuxLossAlpha > 0, "aux_loss_alpha",
		"the pack was not recorded in training mode")
	n := pack.Predictions(c, golden)
	add(n < c.NumNextNPredictLayers, "num_nextn_predict_layers", "the pack has stages of %d of %d prediction layers", n,
		c.NumNextNPredictLayers)
	return list
}

// checkRecorded refuses a pack whose manifest has the hash of the checkpoint's config.json, and holds another config.
func checkRecorded(c *config.Config, golden *pack.Pack, o *Options) error {
	recorded, err := golden.RecordedConfig(c.Reference)
	if err != nil || recorded == nil || o.ConfigHash == "" || golden.Manifest.Checkpoint["config.json"] != o.ConfigHash {
		return err
	}
	if differ := meaningful(pack.Differences(c, recorded)); len(differ) > 0 {
		return golden.Fault("", "manifest.json contradicts itself: config is not the config.json that checkpoint has the hash of: "+
			pack.InWords(differ))
	}
	return nil
}

// meaningful returns the differences that change what the model computes, or its loss.
func meaningful(differ []pack.Difference) []pack.Difference {
	return slices.DeleteFunc(slices.Clone(differ), func(d pack.Difference) bool { return !d.Meaning })
}

// configReasons lists why there can be no verdict about the checkpoint: keys with which the reference ran
// otherwise, or by the pack's config did. If strict, any other config.json is a reason.
func configReasons(s *report.Settings, strict bool) (reasons []string) {
	for _, o := range s.Overridden {
		if !o.Training {
			reasons = append(reasons, fmt.Sprintf("config.json has %s %s, the reference ran with %s: this is no verdict about "+
				"that config", o.Key, o.Checkpoint, o.Reference))
		}
	}
	for _, d := range meaningful(s.Differ) {
		if d.Key != untied && !slices.Contains(training, d.Key) {
			reasons = append(reasons, text.Line(fmt.Sprintf("config.json has %s %s, the pack's config has %s: correct config.json, "+
				"or record the pack from this checkpoint", d.Key, d.Checkpoint, d.Pack)))
		}
	}
	if keys := s.Changed(); strict && (keys != nil || s.Unknown) {
		reasons = append(reasons, fmt.Sprintf("config.json differs from the pack's in %s (--strict-config)",
			cmp.Or(strings.Join(keys, ", "), "keys that the pack does not tell")))
	}
	return reasons
}
