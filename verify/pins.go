package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What the golden's choices of experts tell of the values that decide them. A choice that is the same with another
// value says nothing of that value.

// rechoose hands look the choice of the last gate under another config, or with another gate. What it hands out is
// valid during the call.
type rechoose func(c *config.Config, g *model.MoEGate, look func(*choice))

// rechoosing returns how a gate with these logits chooses otherwise.
func (t *localTrace) rechoosing(logits *bounds.Value) rechoose {
	return func(c *config.Config, g *model.MoEGate, look func(*choice)) {
		t.analysis.Try(func() { look(model.ChooseBy(t.analysis, c, g, logits)) })
	}
}

// rechoosing returns how a gate with these logits chooses otherwise.
func (t *chainedTrace) rechoosing(logits *model.Activation) rechoose {
	return func(c *config.Config, g *model.MoEGate, look func(*choice)) {
		look(t.noisy(model.Choose(c, g, logits)))
	}
}

// pinBias notes with which other biases the golden's choices of k experts, want, are the same. Biases that the
// choices do not tell from zero, or from twice as much, are not pinned.
func (t *tracer) pinBias(p *report.BiasPins, g *model.MoEGate, want []int, k int, padded pack.Padding) {
	if t.rechoose == nil {
		return
	}
	for _, other := range []struct {
		name string
		by   float32
	}{{report.WithoutBias, 0}, {report.TwiceTheBias, 2}} {
		scaled := *g
		scaled.EScoreCorrectionBias = multiplied(&g.EScoreCorrectionBias, other.by)
		t.rechoose(t.m.Config, &scaled, func(c *choice) {
			if sameChoices(c, want, k, padded) {
				p.Same = append(p.Same, other.name)
			}
		})
	}
	if len(p.Same) > 0 {
		t.unpinned[g.EScoreCorrectionBias.Name] = struct{}{}
	}
}

// leaveUndecided notes that what decides a gate's choices was not checked: the golden's choices took their place.
func (t *tracer) leaveUndecided(g *model.MoEGate) {
	decides := []string{g.EScoreCorrectionBias.Name}
	if g.TID2EID != nil {
		decides = append(decides, g.TID2EID.Name)
	}
	for _, name := range decides {
		t.aside[name], t.unpinned[name] = struct{}{}, struct{}{}
	}
}

// sameChoices reports whether rounding explains all differences of a choice from the golden's of k experts, want.
func sameChoices(ours *choice, want []int, k int, padded pack.Padding) bool {
	for row := range ours.Scores.Rows() {
		if !padded.Has(row) && len(compareRow(ours, want[row*k:(row+1)*k], row).wrong) > 0 {
			return false
		}
	}
	return true
}

// multiplied returns a weight with the numbers of w, whatever its stored form, times a factor.
func multiplied(w *model.Weight, by float32) model.Weight {
	plain := model.NewPlain(model.Options{})
	defer plain.Close(nil)
	scaled := model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: w.Shape}}
	for _, v := range plain.Values(w) {
		scaled.Data = binary.LittleEndian.AppendUint32(scaled.Data, math.Float32bits(by*v))
	}
	return scaled
}

// The keys that operations read, see reading.
const (
	rmsNormEps      = "rms_norm_eps"
	hcEps           = "hc_eps"
	hcSinkhornIters = "hc_sinkhorn_iters"
)

// tell is a number of config.json that a compared stage of a layer, -1 outside the layers, tells from half as much or
// from twice as much.
type tell struct {
	layer int
	key   string
	by    float64 // 0.5 or 2
}

// halfAndTwice are the factors that are tried.
var halfAndTwice = []float64{0.5, 2}

// tryReadings notes which numbers the stage of a check, x, tells from others: with those it fails, if it did not fail
// without.
func (t *localTrace) tryReadings(c *report.Check, x *bounds.Value, want []float32, rows *bounds.Rows) {
	if ignoresEps(c.Tensor) {
		return
	}
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			at, other := tell{c.Layer(), r.key, by}, *c
			if !t.told[at] && c.Verdict == report.Pass {
				t.analysis.Try(func() {
					y := r.again(by)
					y.DistributeShared()
					factor, _ := t.factor(c.Tensor)
					t.judgeMeasured(&other, y, bounds.Measure(y, want, rows, factor), want, rows)
				})
			}
			t.told[at] = t.told[at] || other.Verdict == report.Fail
		}
	}
}

// trustReadings takes numbers for told where the pack lacks the stage of the operation: they show in a later stage.
func (t *localTrace) trustReadings(name string, x *bounds.Value) {
	layer, _ := pack.CutLayer(name)
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			t.told[tell{layer, r.key, by}] = !ignoresEps(name)
		}
	}
}

// ignoresEps reports whether a stage is a norm whose eps is config.LatentEps, whatever config.json has.
func ignoresEps(name string) bool {
	_, kind := pack.CutLayer(name)
	return kind == pack.InAttention(table.QALayernorm) || kind == pack.InAttention(table.KVALayernorm)
}

// tellRotations notes which numbers the rotations that took part in a checked stage tell from others.
func (t *tracer) tellRotations(layer int, rotations []string) {
	for _, name := range rotations {
		if t.rotations[name] == nil {
			t.rotations[name] = t.rotationTells(name == compressedRotation)
		}
		for at := range t.rotations[name] {
			t.told[tell{layer, at.key, at.by}] = true
		}
	}
}

// rotationTells returns the numbers with half or twice of which RoPE's tables, or the scale of scores, are different
// ones.
func (t *tracer) rotationTells(compressed bool) map[tell]bool {
	tells, o := map[tell]bool{}, t.options()
	for _, n := range rotationNumbers(t.m.Config, compressed) {
		for _, by := range halfAndTwice {
			if !model.RotatesAlike(t.m.Config, n.With(t.m.Config, by*n.Value(t.m.Config)), compressed, t.in.Seq, &o) {
				tells[tell{-1, n.Key, by}] = true
			}
		}
	}
	return tells
}

// tellGroups notes whether other numbers of groups would choose other experts than the golden's k, of which so many are
// wrong already.
func (t *tracer) tellGroups(layer, wrong int, want []int, k int, padded pack.Padding) {
	if t.rechoose == nil {
		return
	}
	for _, key := range groupKeys(t.m.Config) {
		for _, by := range halfAndTwice {
			at := tell{layer, key, by}
			t.told[at] = true // of numbers that the reference does not run with, or of choices that differ
			if other := otherGroupCount(t.m.Config, key, by); wrong == 0 && other != nil {
				t.rechoose(other, &t.m.Layer(layer).MoE.Gate, func(c *choice) { t.told[at] = !sameChoices(c, want, k, padded) })
			}
		}
	}
}

// groupKeys are the numbers of groups of experts.
func groupKeys(c *config.Config) []string {
	if c.NRoutedExperts == 0 || !c.LimitsGroups() {
		return nil
	}
	return []string{"n_group", "topk_group"}
}

// otherGroupCount returns c with another number of groups; nil if the reference does not run with it.
func otherGroupCount(c *config.Config, key string, by float64) *config.Config {
	was, _ := strconv.ParseFloat(string(c.Value(key)), 64)
	other, err := c.Override(map[string]jsontext.Value{key: jsontext.Value(strconv.Itoa(int(was * by)))})
	if err == nil {
		other, err = other.As(c.Reference)
	}
	if err != nil {
		return nil
	}
	return other
}

// rotationNumbers are the numbers of RoPE's tables in layers without entries, or in those with entries.
func rotationNumbers(c *config.Config, compressed bool) []config.Number {
	list, s := config.RotationNumbers(c, compressed), c.RopeScaling
	if compressed {
		s = c.CompressRopeScaling
	}
	if s != nil && s.Type == "dynamic" {
		return list[:1] // it begins where the pack may not reach: see unexercised
	}
	return list
}

// tried lists the numbers of c that others are tried of, in either mode; those that operations read in local mode.
func tried(c *config.Config, mode report.Mode) []string {
	keys := []string{}
	if mode == report.Local {
		if keys = append(keys, rmsNormEps); c.HCMult > 0 {
			keys = append(keys, hcEps, hcSinkhornIters)
		}
	}
	numbers := rotationNumbers(c, false)
	if c.Windowed() {
		numbers = append(numbers, rotationNumbers(c, true)...)
	}
	for _, n := range numbers {
		keys = append(keys, n.Key)
	}
	return append(keys, groupKeys(c)...)
}

// countTold lists what the stages of a place tell.
func (t outcome) countTold(p *report.Place) {
	if p.Name == report.EmbeddingPlace {
		return
	}
	for _, key := range t.settings.Tried {
		if t.told[tell{p.Layer(), key, 0.5}] {
			p.TellsHalf = append(p.TellsHalf, key)
		}
		if t.told[tell{p.Layer(), key, 2}] {
			p.TellsTwice = append(p.TellsTwice, key)
		}
	}
}

// untold lists the numbers that no stage tells from half as much, or from twice as much. A selection of stages, a run
// that was stopped, or a part without a layer says nothing of the config.
func untold(r *report.Report) []report.Unexercised {
	list := []report.Unexercised{}
	if len(r.Scope.Stages) > 0 || r.Stopped || isEmptyPart(r) {
		return list
	}
	for _, key := range r.Config.Tried {
		half := slices.ContainsFunc(r.Places, func(p report.Place) bool { return slices.Contains(p.TellsHalf, key) })
		twice := slices.ContainsFunc(r.Places, func(p report.Place) bool { return slices.Contains(p.TellsTwice, key) })
		what := "rotations"
		switch key {
		case rmsNormEps:
			what = "norms"
		case hcEps, hcSinkhornIters:
			what = "weights of streams"
		case "n_group", "topk_group":
			what = "choices of experts"
		}
		other := map[[2]bool]string{{false, false}: "half or twice as much", {false, true}: "half as much",
			{true, false}: "twice as much"}[[2]bool{half, twice}]
		if other != "" {
			list = append(list, report.Unexercised{Key: key,
				Why: fmt.Sprintf("the %s that were compared do not tell it from %s", what, other)})
		}
	}
	return list
}
