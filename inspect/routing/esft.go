package routing

// Routing in the form of ESFT (github.com/deepseek-ai/ESFT, arXiv 2407.01906): its logs of experts are
// read, and its summary of them written.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/text"
)

// ESFTLog is a log of one layer's choices, as the model of ESFT writes it: a line for each
// forward pass, with the tokens' expert ids, num_experts_per_tok of each one after the other, and,
// behind an empty field, their gate weights in the same order, all with tabs between.
type ESFTLog struct {
	Name  string // of the file, as errors name it
	Layer int    // as ParseESFTName reads it
	Open  func() (io.ReadCloser, error)
}

// ParseESFTName returns the layer of a log by the name of its file: "expert_weights_26.txt".
func ParseESFTName(name string) (layer int, ok bool) {
	digits, ok := strings.CutPrefix(name, "expert_weights_")
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, ".txt"); !ok {
		return 0, false
	}
	return inspect.Number(digits)
}

// ESFTLogs is a run's logs, and the model that was run.
type ESFTLogs struct {
	Path   string         // as the user gave it
	Logs   []ESFTLog      // a layer can have several, one for each process that ran
	Config *config.Config // of the model
}

// OfLogs reads logs. Its error names the first fault of each file. Logs hold no scores, so there are no margins.
func OfLogs(ctx context.Context, l ESFTLogs, o Options) (*Report, error) {
	byLayer := map[int][]ESFTLog{}
	for _, log := range l.Logs {
		byLayer[log.Layer] = append(byLayer[log.Layer], log)
	}
	layers := slices.Sorted(maps.Keys(byLayer))
	if err := fits(layers, l.Config, o); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(l.Path), err)
	}
	r := newReport(l.Path, FromLogs, o)
	r.Experts, r.PerToken = l.Config.NRoutedExperts, l.Config.NumExpertsPerTok
	var errs []error
	for _, layer := range layers {
		if !o.Layers.Has(layer) {
			continue
		}
		t := newTally(layer, r.Experts, r.PerToken, true, false)
		lines, err := readLogs(ctx, byLayer[layer], t)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.Sequences, r.Tokens = max(r.Sequences, lines), max(r.Tokens, t.tokens)
		r.Layers = append(r.Layers, t.report(o))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var short []int
	for _, l := range r.Layers {
		if l.Tokens < r.Tokens {
			short = append(short, l.Layer)
		}
	}
	r.lack(short, "the logs hold fewer tokens than those of other layers")
	r.lack(without(l.Config.MoELayers(), layers, o), "there are no logs of them")
	r.Missing = append(r.Missing, "margins: the logs hold no scores", "padding: the logs do not tell it from other tokens")
	return r, ctx.Err()
}

// fits returns an error if the config lacks layers of the logs, or the logs lack layers or experts of the options.
func fits(layers []int, c *config.Config, o Options) error {
	moe := c.MoELayers()
	foreign := slices.DeleteFunc(slices.Clone(layers), func(l int) bool { return slices.Contains(moe, l) })
	if len(foreign) > 0 {
		return fmt.Errorf("there are logs of layers %s, but by the config layers %s have routed experts",
			text.Ranges(foreign), text.Ranges(moe))
	}
	return o.check("the log", layers, c.NRoutedExperts)
}

// without returns the selected layers that have no logs.
func without(layers, logged []int, o Options) []int {
	return slices.DeleteFunc(layers, func(l int) bool { return !o.Layers.Has(l) || slices.Contains(logged, l) })
}

// readLogs counts a layer's logs, and returns how many lines they have.
func readLogs(ctx context.Context, logs []ESFTLog, t *layerTally) (lines int, err error) {
	var errs []error
	for _, log := range logs {
		n, err := readLog(ctx, log, t)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", text.Quote(log.Name), err))
		}
		lines += n
	}
	if errs == nil && t.tokens == 0 {
		errs = append(errs, fmt.Errorf("%s: empty", text.Quote(logs[0].Name)))
	}
	return lines, errors.Join(errs...)
}

func readLog(ctx context.Context, log ESFTLog, t *layerTally) (lines int, err error) {
	f, err := log.Open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	p := esftLog{in: bufio.NewReaderSize(f, 1<<16), tally: t}
	for ctx.Err() == nil {
		more, err := p.line()
		if err != nil {
			return lines, fmt.Errorf("line %d: %w", lines+1, err)
		}
		if !more {
			break
		}
		lines++
	}
	return lines, ctx.Err()
}

// maxLineIDs is how many expert ids a line may have. The ids of a line are in memory.
const maxLineIDs = 1 << 24

// esftLog reads a log field by field.
type esftLog struct {
	in    *bufio.Reader
	tally *layerTally
	ids   []int
	field []byte
}

// line counts the tokens of the next line; more is false at the end of the log.
func (p *esftLog) line() (more bool, err error) {
	p.ids = p.ids[:0]
	for {
		end, err := p.next()
		if err == io.EOF && len(p.ids) == 0 && len(p.field) == 0 {
			return false, nil
		}
		if err != nil && err != io.EOF {
			return false, err
		}
		if len(p.field) == 0 && end == '\t' {
			break
		}
		id, bad := strconv.Atoi(string(p.field))
		switch {
		case bad != nil:
			return false, fmt.Errorf("%s is not an expert's number", text.Quote(string(p.field)))
		case end != '\t':
			return false, errors.New("no gate weights: an empty field between tabs must come before them")
		case len(p.ids) == maxLineIDs:
			return false, fmt.Errorf("more than %s", text.Plural(maxLineIDs, "expert"))
		}
		p.ids = append(p.ids, id)
	}
	if k := p.tally.k; len(p.ids) == 0 || len(p.ids)%k != 0 {
		return false, fmt.Errorf("%s, which is not %d for each token", text.Plural(len(p.ids), "expert"), k)
	}
	return true, p.weights()
}

// weights reads the second half of a line, and counts its tokens.
func (p *esftLog) weights() error {
	k := p.tally.k
	weights := make([]float64, 0, k)
	for i := range p.ids {
		end, err := p.next()
		if err != nil && err != io.EOF {
			return err
		}
		w, bad := strconv.ParseFloat(string(p.field), 64)
		switch last := i == len(p.ids)-1; {
		case bad != nil:
			return fmt.Errorf("%s is not a gate weight", text.Quote(string(p.field)))
		case last != (end != '\t'):
			return fmt.Errorf("%s, but more or fewer gate weights", text.Plural(len(p.ids), "expert"))
		}
		if weights = append(weights, w); len(weights) == k {
			if err := p.count(p.ids[i+1-k:i+1], weights); err != nil {
				return fmt.Errorf("token %d: %w", i/k, err)
			}
			weights = weights[:0]
		}
	}
	return nil
}

func (p *esftLog) count(ids []int, weights []float64) error {
	if err := p.tally.choose(ids); err != nil {
		return err
	}
	return weigh(p.tally, ids, weights)
}

// maxField is how many bytes a number may have.
const maxField = 32

// next reads a field, and returns the byte behind it: a tab or a line feed, or 0 with io.EOF.
func (p *esftLog) next() (end byte, err error) {
	p.field = p.field[:0]
	for {
		c, err := p.in.ReadByte()
		switch {
		case err != nil:
			return 0, err
		case c == '\t' || c == '\n':
			if c == '\n' && len(p.field) > 0 && p.field[len(p.field)-1] == '\r' {
				p.field = p.field[:len(p.field)-1]
			}
			return c, nil
		case len(p.field) == maxField:
			return 0, fmt.Errorf("%s… is no number", text.Quote(string(p.field)))
		}
		p.field = append(p.field, c)
	}
}

// WriteESFT writes the scores of experts as the summary.json files of ESFT's results/expert_scores
// have them, a JSON object with two members, by layer and expert, rounded to 4 decimals: token_scores
// (Share) and gate_scores (MeanWeight).
func (r *Report) WriteESFT(w io.Writer) error {
	for _, l := range r.Layers {
		if l.Mass == nil {
			return fmt.Errorf("%s: layer %d: its gate weights are not known, so there are no gate_scores", text.Quote(r.Path),
				l.Layer)
		}
	}
	var b strings.Builder
	b.WriteString(`{"token_scores": `)
	r.writeScores(&b, func(e *Expert) float64 { return e.Share })
	b.WriteString(`, "gate_scores": `)
	r.writeScores(&b, func(e *Expert) float64 { return *e.MeanWeight })
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeScores(b *strings.Builder, of func(e *Expert) float64) {
	b.WriteByte('{')
	for i, l := range r.Layers {
		fmt.Fprintf(b, "%s\"%d\": {", separator(i), l.Layer)
		for j := range l.Experts {
			rounded, _ := strconv.ParseFloat(strconv.FormatFloat(of(&l.Experts[j]), 'f', 4, 64), 64)
			score := strconv.FormatFloat(rounded, 'f', -1, 64)
			if !strings.Contains(score, ".") {
				score += ".0" // as Python writes it
			}
			fmt.Fprintf(b, "%s\"%d\": %s", separator(j), l.Experts[j].Expert, score)
		}
		b.WriteByte('}')
	}
	b.WriteByte('}')
}

// separator is what stands before element i of a list.
func separator(i int) string {
	if i == 0 {
		return ""
	}
	return ", "
}
