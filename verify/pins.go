package verify

import (
	"encoding/binary"
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What the golden's choices of experts tell of the values that decide them. A choice that is the same with another
// value says nothing of that value.

// pinBias notes with which other biases the golden's choices of k experts, want, are the same. Biases that the
// choices do not tell from zero, or from twice as much, are not pinned.
func (t *pass) pinBias(p *report.BiasPins, g *model.MoEGate, want []int, k int, padded pack.Padding) {
	if t.rechoose == nil {
		return
	}
	for _, other := range []struct {
		name string
		by   float32
	}{{report.WithoutBias, 0}, {report.TwiceTheBias, 2}} {
		scaled := *g
		scaled.EScoreCorrectionBias = multiplied(&g.EScoreCorrectionBias, other.by)
		t.rechoose(t.job.model.Config, &scaled, func(c *choice) {
			if sameChoices(c, want, k, padded) {
				p.Same = append(p.Same, other.name)
			}
		})
	}
	if len(p.Same) > 0 {
		t.evidence.unpinned[g.EScoreCorrectionBias.Name] = struct{}{}
	}
}

// leaveUndecided notes a weight that decides a gate's choices, which are not checked.
func (t *pass) leaveUndecided(name string) {
	t.evidence.leaveOut(name)
	t.evidence.unpinned[name] = struct{}{}
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

// tellGroups notes whether other numbers of groups would choose other experts than the golden's k, of which so many are
// wrong already.
func (t *pass) tellGroups(layer, wrong int, want []int, k int, padded pack.Padding) {
	if t.rechoose == nil {
		return
	}
	for _, key := range groupKeys(t.job.model.Config) {
		for _, by := range halfAndTwice {
			differ := true // also where the reference does not run with the number, or where choices differ already
			if other := otherGroupCount(t.job.model.Config, key, by); wrong == 0 && other != nil {
				t.rechoose(other, &t.job.model.Layer(layer).MoE.Gate, func(c *choice) { differ = !sameChoices(c, want, k, padded) })
			}
			if differ {
				t.evidence.tells[tell{layer, key, by}] = ""
			}
		}
	}
}
