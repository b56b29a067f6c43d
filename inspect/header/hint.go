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

func newHints(c *config.Config, set *weights.Set) *hints {
	return &hints{c, table.FamilyOf(c), set, map[*table.Row]string{}}
}

// hint returns the hint for a tensor that is missing, not expected or of another shape.
func (h *hints) hint(name string) string {
	known, _ := h.family.Spell(h.config, name)
	at := h.family.Place(known)
	near := h.set.Nearest(name)
	switch {
	case at.Row == nil && near != "":
		return fmt.Sprintf("no weight of model_type %s has this name; the nearest is %s", h.config.ModelType,
			text.Quote(near))
	case at.Row == nil:
		return fmt.Sprintf("no weight of model_type %s has this name", h.config.ModelType)
	case at.Layer >= 0 && !h.hasLayer(at):
		return h.layers()
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

// hasLayer reports whether the model has the layer, and weights of the row may be in it. Prediction layers are
// numbered on from the decoder's and have the rows of both.
func (h *hints) hasLayer(at table.Place) bool {
	decoder, all := h.config.NumHiddenLayers, h.config.NumHiddenLayers
	if h.family.MTP != nil {
		all += h.config.NumNextNPredictLayers
	}
	return at.Layer < all && (!h.isMTP(at.Row) || at.Layer >= decoder)
}

// isMTP reports whether only multi-token prediction layers have weights of the row.
func (h *hints) isMTP(row *table.Row) bool {
	for i := range h.family.MTP {
		if &h.family.MTP[i] == row {
			return true
		}
	}
	return false
}

// layers says how many layers the model has.
func (h *hints) layers() string {
	count := fmt.Sprintf("num_hidden_layers is %d", h.config.NumHiddenLayers)
	if h.family.MTP != nil {
		count += fmt.Sprintf(", num_nextn_predict_layers is %d", h.config.NumNextNPredictLayers)
	}
	return count
}
