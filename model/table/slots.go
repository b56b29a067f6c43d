package table

import (
	"iter"
	"slices"

	"dsmoe/config"
)

// Slots yields every weight that c implies, in the order of the reference's
// state_dict: rows before the layers, layer by layer, rows after them.
func (f *Family) Slots(c *config.Config) iter.Seq[Slot] {
	return slots(pointers(f.Rows), c, 0, c.NumHiddenLayers)
}

// MTPSlots yields the weights of the num_nextn_predict_layers prediction layers, which
// are numbered on from num_hidden_layers.
func (f *Family) MTPSlots(c *config.Config) iter.Seq[Slot] {
	return slots(f.mtpRows(), c, c.NumHiddenLayers, c.NumHiddenLayers+f.PredictionLayers(c))
}

// LayerPlaces yields the places of the weights that c implies in layer l, one of the decoder
// or a prediction layer.
func (f *Family) LayerPlaces(c *config.Config, l int) iter.Seq[Place] {
	rows := f.mtpRows()
	if l < c.NumHiddenLayers {
		rows = slices.DeleteFunc(pointers(f.Rows), func(r *Row) bool { return !r.PerLayer() })
	}
	return func(yield func(Place) bool) { expandRows(rows, c, l, yield) }
}

// PredictionLayers returns how many prediction layers c announces, if the family has any.
func (f *Family) PredictionLayers(c *config.Config) int {
	if f.MTP == nil {
		return 0
	}
	return c.NumNextNPredictLayers
}

// mtpRows are all rows of a prediction layer.
func (f *Family) mtpRows() []*Row {
	perLayer := slices.DeleteFunc(pointers(f.Rows), func(r *Row) bool { return !r.PerLayer() })
	return append(pointers(f.MTP), perLayer...)
}

func pointers(rows []Row) []*Row {
	all := make([]*Row, len(rows))
	for i := range rows {
		all[i] = &rows[i]
	}
	return all
}

// slots yields the weights of rows, those of the layers first … end-1.
func slots(rows []*Row, c *config.Config, first, end int) iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		each := func(p Place) bool { return yield(Slot{p.Row.NameIn(p.Layer, p.Expert), p.Row.Sizes(c, p.Layer), p}) }
		for rest := rows; len(rest) > 0; {
			n, l, last := leading(rest, (*Row).PerLayer), first, end
			if !rest[0].PerLayer() {
				l, last = -1, 0
			}
			for ; l < last; l++ {
				if !expandRows(rest[:n], c, l, each) {
					return
				}
			}
			rest = rest[n:]
		}
	}
}

// leading returns how many rows, from the first on, agree with it on a property.
func leading(rows []*Row, property func(*Row) bool) int {
	for n := range rows {
		if property(rows[n]) != property(rows[0]) {
			return n
		}
	}
	return len(rows)
}

// expandRows yields the rows of one layer; consecutive expert rows are yielded
// expert by expert.
func expandRows(rows []*Row, c *config.Config, layer int, yield func(Place) bool) bool {
	for len(rows) > 0 {
		n := leading(rows, (*Row).PerExpert)
		first, end := -1, 0
		if rows[0].PerExpert() {
			first, end = 0, c.MoE.NRoutedExperts
		}
		for e := first; e < end; e++ {
			for _, r := range rows[:n] {
				if r.Holds(c, layer) && !yield(Place{r, layer, e}) {
					return false
				}
			}
		}
		rows = rows[n:]
	}
	return true
}
