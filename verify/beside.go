package verify

import (
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Stored tensors that contradict config.json, and what the model computes with in their place.

// findContradictions returns a line for each of them.
func (s *storedWeights) findContradictions() (lines []string, err error) {
	lines = []string{}
	head, embedding := s.Find(table.HeadName), s.Find(embeddingName)
	if c := s.config; table.UsesStoredHead(c, s.Has) && isRead(head) && isRead(embedding) {
		same, err := s.sameNumbers(head, embedding)
		if err != nil {
			return nil, err
		}
		if !same {
			lines = append(lines, "tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than "+
				"model.embed_tokens.weight: transformers computes with the stored head, and so does this verification")
		}
	}
	frequencies, err := s.storedFrequencies()
	return append(lines, frequencies...), err
}

// isRead reports whether the weight is there, in a file whose header was read.
func isRead(w *weights.Weight) bool { return w != nil && !w.Unread() }

// storedFrequencies describes the layers whose tensors that follow from config.json have other numbers.
func (s *storedWeights) storedFrequencies() (lines []string, err error) {
	layers := map[string][]string{} // by what they hold
	var order []string
	for _, w := range s.All() {
		if !isRead(w) || !table.Follows(s.config, w.Info) {
			continue
		}
		for row, err := range s.rowsOf(w) {
			if err != nil {
				return nil, err
			}
			if other := table.Contradiction(s.config, w.Name, row, w.DType); other != "" {
				if layers[other] == nil {
					order = append(order, other)
				}
				layers[other] = append(layers[other], w.Name)
			}
		}
	}
	for _, other := range order {
		names := layers[other]
		what := text.Quote(names[0])
		if len(names) > 1 {
			what += " and " + text.Plural(len(names)-1, "other")
		}
		lines = append(lines, what+": "+other)
	}
	return lines, nil
}
