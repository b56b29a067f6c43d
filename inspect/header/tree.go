package header

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// TreeReport is the tensors of a checkpoint as the modules that their names say, by headers
// alone and without a config. Neighbours with numbers for names, as layers and experts are,
// share a node if what is in them is alike: names, dtypes and shapes.
type TreeReport struct {
	Path string    `json:"path"` // of the checkpoint, as the user gave it
	Tree *treeNode `json:"tree"` // the whole, whose name is empty
	inspect.BrokenFiles

	depth int
}

// treeNode is a module, or a tensor; or several that are alike.
type treeNode struct {
	Name       string      `json:"name"`            // within its parent: "{1..27}", "self_attn", "up_proj.weight"
	Count      int         `json:"count"`           // how many that are alike it stands for, in each parent
	Tensors    int         `json:"tensors"`         // in all of them, in all that the parents stand for
	Parameters int64       `json:"parameters"`      // their elements; scales (weight_scale_inv) have none
	Bytes      int64       `json:"bytes"`           // of their data
	DTypes     []dtypeSum  `json:"dtypes"`          // of them, most bytes first
	Shape      []int       `json:"shape,omitempty"` // of a tensor; absent if it has none
	Children   []*treeNode `json:"children"`        // in the order of names; none of a tensor

	tensor    *inspect.Tensor // nil of a module
	signature string          // equal for nodes with like contents
}

// Tree puts the tensors of a listing into a tree. Its text shows depth levels; 0 is all.
func (l *Listing) Tree(depth int) *TreeReport {
	var all []branch
	for i := range l.Tensors {
		all = append(all, branch{l.Tensors[i].Name, &l.Tensors[i]})
	}
	root := moduleNode("", all)
	headers := map[string]tensor.Info{}
	for _, t := range l.Tensors {
		headers[t.Name] = tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	root.total(1, headers, l.config)
	return &TreeReport{l.Path, root, l.BrokenFiles, depth}
}

// branch is a tensor below a module, and the end of its name behind the module's.
type branch struct {
	name   string
	tensor *inspect.Tensor
}

// moduleNode makes a node of the tensors below it, which are in the order of names.
func moduleNode(name string, below []branch) *treeNode {
	n := &treeNode{Name: name, Count: 1, Children: []*treeNode{}}
	for len(below) > 0 {
		first, _, inner := strings.Cut(below[0].name, ".")
		if !inner {
			t := below[0].tensor
			n.Children = append(n.Children, &treeNode{Name: first, Count: 1, Shape: t.Shape, Children: []*treeNode{}, tensor: t,
				signature: fmt.Sprint(t.DType, t.Shape)})
			below = below[1:]
			continue
		}
		end := 0
		for ; end < len(below) && strings.HasPrefix(below[end].name, first+"."); end++ {
			below[end].name = below[end].name[len(first)+1:]
		}
		child := moduleNode(first, below[:end])
		if _, numbered := inspect.Number(first); !numbered && len(child.Children) == 1 && child.Children[0].tensor != nil {
			child = child.Children[0] // the only tensor of a module, under both names
			child.Name = first + "." + child.Name
			child.signature = strconv.Quote(child.Name) + child.signature
		}
		n.Children = append(n.Children, child)
		below = below[end:]
	}
	n.Children = foldNodes(n.Children)
	var signatures []byte
	for _, c := range n.Children {
		signatures = fmt.Appendf(signatures, "%q %q\n", c.Name, c.signature)
	}
	n.signature = digest.Of(signatures)
	return n
}

// foldNodes makes one node of nodes that have numbers for names and are alike.
func foldNodes(nodes []*treeNode) []*treeNode {
	kept := []*treeNode{}
	numbers := map[*treeNode][]int{}
	alike := map[string]*treeNode{}
	for _, n := range nodes {
		i, ok := inspect.Number(n.Name)
		first := alike[n.signature]
		switch {
		case !ok || n.tensor != nil:
			kept = append(kept, n)
		case first == nil:
			alike[n.signature] = n
			numbers[n] = []int{i}
			kept = append(kept, n)
		default:
			numbers[first] = append(numbers[first], i)
		}
	}
	for n, set := range numbers {
		n.Name, n.Count = text.Set(set, inspect.AllRuns), len(set)
	}
	return kept
}

// total adds up the tensors in so many of the node. headers are of all tensors, c may be nil: codes count one by one.
func (n *treeNode) total(times int, headers map[string]tensor.Info, c *config.Config) {
	times *= n.Count
	if t := n.tensor; t != nil {
		n.Tensors, n.Bytes = times, int64(times)*t.Bytes
		var announced *tensor.Form
		if c != nil {
			announced = tensor.FormOf(c.SchemeOf(t.Name[:max(strings.LastIndexByte(t.Name, '.'), 0)]).Method)
		}
		find := func(name string) (tensor.Info, bool) { info, ok := headers[name]; return info, ok }
		if info, part, _, _ := tensor.PartOf(headers[t.Name], find, announced, 0); part == "" && !tensor.ScalesActivations(t.Name) {
			n.Parameters = int64(times) * int64(info.Len())
		}
		n.DTypes = []dtypeSum{{t.DType, n.Tensors, n.Bytes}}
		return
	}
	n.DTypes = []dtypeSum{}
	for _, child := range n.Children {
		child.total(times, headers, c)
		n.Tensors += child.Tensors
		n.Parameters += child.Parameters
		n.Bytes += child.Bytes
		n.DTypes = addDTypes(n.DTypes, child.DTypes)
	}
	sortDTypes(n.DTypes)
}

// Sheet is a row per node, in depth-first order, with its whole name.
func (r *TreeReport) Sheet() *text.Sheet {
	s := text.NewSheet("module", ">tensors", ">parameters", ">share", ">bytes", "dtypes", "shape")
	r.addRows(s, r.Tree, "", 0)
	return s
}

// addRows adds a node and those below it.
func (r *TreeReport) addRows(s *text.Sheet, n *treeNode, path string, depth int) {
	name := text.Cell{Shown: strings.Repeat("  ", depth) + text.Word(n.Name), Exact: text.Line(path)}
	if depth == 0 {
		name = text.Plain("(all)")
	}
	var dtypes []string
	for _, d := range n.DTypes {
		dtypes = append(dtypes, d.DType.String())
	}
	shape := ""
	if n.tensor != nil {
		shape = fmt.Sprint(n.Shape)
	}
	s.Row(name, n.Tensors, n.Parameters, text.Share(n.Parameters, r.Tree.Parameters), text.Size(n.Bytes),
		strings.Join(dtypes, " "), shape)
	if r.depth > 0 && depth == r.depth {
		return
	}
	for _, c := range n.Children {
		inner := c.Name
		if depth > 0 {
			inner = path + "." + c.Name
		}
		r.addRows(s, c, inner, depth+1)
	}
}

// WriteText writes the sheet, and which files are not in it.
func (r *TreeReport) WriteText(w io.Writer) error {
	r.Sheet().WriteAs(w, text.AsTable)
	return r.WriteNotes(w)
}
