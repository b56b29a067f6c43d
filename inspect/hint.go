package inspect

import (
	"fmt"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
)

// hints explains findings about tensors by the table of weights: which keys of
// config.json say whether there is a tensor of a name, and of what shape.
type hints struct {
	config *config.Config
	rows   map[string]rowHint // by the template of their names, as split makes it
	mtp    bool               // the family has multi-token prediction layers
}

// rowHint is what there is to say of the weights of one row.
type rowHint struct {
	mtp bool   // only multi-token prediction layers have them
	see string // "see hidden_size 64, moe_intermediate_size 24"
}

func newHints(c *config.Config) *hints {
	f := table.FamilyOf(c)
	h := &hints{config: c, rows: map[string]rowHint{}, mtp: f.MTP != nil}
	for i := range f.Rows {
		h.add(&f.Rows[i], false)
	}
	for i := range f.MTP {
		h.add(&f.MTP[i], true)
	}
	return h
}

func (h *hints) add(p *table.Row, mtp bool) {
	var settings []string
	for _, key := range p.Keys() {
		settings = append(settings, fmt.Sprintf("%s %s", key, h.config.Value(key)))
	}
	template := strings.NewReplacer("{l}", hole, "{e}", hole).Replace(p.Name)
	h.rows[template] = rowHint{mtp, "see " + strings.Join(settings, ", ")}
}

// of returns the hint for a tensor that is missing, not expected or of another shape.
func (h *hints) of(name string) string {
	template, numbers := split(name)
	row, ok := h.rows[template]
	switch {
	case !ok:
		return fmt.Sprintf("no weight of model_type %s has this name", h.config.ModelType)
	case len(numbers) > 0 && !h.hasLayer(row, numbers[0]):
		return h.layers()
	}
	return row.see
}

// hasLayer says whether the model has the layer, and weights of the row may be in it.
// Prediction layers are numbered on from the decoder's and have the rows of both.
func (h *hints) hasLayer(row rowHint, layer int) bool {
	decoder, all := h.config.NumHiddenLayers, h.config.NumHiddenLayers
	if h.mtp {
		all += h.config.NumNextNPredictLayers
	}
	return layer < all && (!row.mtp || layer >= decoder)
}

// layers says how many layers the model has.
func (h *hints) layers() string {
	count := fmt.Sprintf("num_hidden_layers is %d", h.config.NumHiddenLayers)
	if h.mtp {
		count += fmt.Sprintf(", num_nextn_predict_layers is %d", h.config.NumNextNPredictLayers)
	}
	return count
}
