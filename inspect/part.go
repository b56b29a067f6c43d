package inspect

import (
	"strconv"
	"strings"

	"dsmoe/model/weights"
)

// Part is the share of a checkpoint's weights that a report is about: part Index of a number of parts. The parts follow
// one another in the order of the model, and each layer is in one.
type Part struct {
	Index int `json:"index"` // from 1 on
	Of    int `json:"of"`    // number of parts
	// Identity and Samples name the checkpoint's files: those of another report are of the same checkpoint
	Identity map[string]string `json:"identity"`
	Samples  map[string]string `json:"samples"` // of files on the disk

	names map[string]bool // of the part's weights
}

// TakePart makes p the part of the weights that Pick picks of, and settles which they are: parts have about as many
// bytes each of the weights that counts counts. It reports whether there is one of these in it.
func (w *Weights) TakePart(p *Part, counts func(*weights.Weight) bool) (some bool) {
	last := map[string]int{} // index of the last weight of each key
	for i, x := range w.List {
		last[partKey(x)] = i
	}
	units, bytes, end := [][]*weights.Weight{}, []int64{}, -1
	for i, x := range w.List {
		if i > end {
			units, bytes = append(units, nil), append(bytes, 0)
		}
		end = max(end, last[partKey(x)])
		n := len(units) - 1
		if units[n] = append(units[n], x); counts(x) {
			bytes[n] += x.Bytes()
		}
	}
	p.names = map[string]bool{}
	for i, part := range weights.Share(bytes, p.Of) {
		for _, x := range units[i] {
			if part == p.Index-1 {
				p.names[x.Name] = true
				some = some || counts(x)
			}
		}
	}
	w.Part = p
	return some
}

// partKey names what a weight goes with: its layer, or its module outside the layers.
func partKey(x *weights.Weight) string {
	if at := x.OwnerPlace(); at.Layer >= 0 {
		return strconv.Itoa(at.Layer)
	}
	return x.Name[:max(0, strings.LastIndexByte(x.Name, '.'))]
}
