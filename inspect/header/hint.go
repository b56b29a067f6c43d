package header

import (
	"fmt"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// hints explains findings about tensors by the table of weights: which keys of config.json decide whether
// a tensor exists, and its shape.
type hints struct {
	config *config.Config
	family *table.Family
	set    *weights.Set
	rows   map[*table.Row]string // "see hidden_size 64, moe_intermediate_size 24"
}

// hint returns the hint for a tensor that is missing, not expected or of another shape.
func (h *hints) hint(name string) string {
	known, _ := h.family.Spell(h.config, name)
	at := h.family.Place(known)
	near := h.set.Nearest(name)
	first, last := 0, h.config.NumHiddenLayers-1 // layers that may have weights of the row
	if h.family.MTP != nil {                     // prediction layers are numbered on, and have the rows of both
		last += h.config.NumNextNPredictLayers
	}
	for i := range h.family.MTP {
		if &h.family.MTP[i] == at.Row { // only prediction layers have it
			first = h.config.NumHiddenLayers
		}
	}
	switch {
	case at.Row == nil && near != "":
		return fmt.Sprintf("no weight of model_type %s has this name; the nearest is %s", h.config.ModelType,
			text.Quote(near))
	case at.Row == nil:
		return fmt.Sprintf("no weight of model_type %s has this name", h.config.ModelType)
	case at.Layer >= 0 && (at.Layer < first || at.Layer > last):
		count := fmt.Sprintf("num_hidden_layers is %d", h.config.NumHiddenLayers)
		if h.family.MTP != nil {
			count += fmt.Sprintf(", num_nextn_predict_layers is %d", h.config.NumNextNPredictLayers)
		}
		return count
	}
	if keys := at.Row.Keys(); h.rows[at.Row] == "" && keys != nil {
		var settings []string
		for _, key := range keys {
			if key = h.config.Key(key); h.config.HasKey(key) {
				settings = append(settings, fmt.Sprintf("%s %s", key, h.config.Value(key)))
			}
		}
		h.rows[at.Row] = "see " + strings.Join(settings, ", ")
	}
	return h.rows[at.Row]
}
