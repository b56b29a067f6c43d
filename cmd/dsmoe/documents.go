package main

import (
	"fmt"
	"io"
	"reflect"

	"dsmoe/convert"
	"dsmoe/convert/plan"
	"dsmoe/inspect/experts"
	"dsmoe/inspect/header"
	"dsmoe/inspect/report"
	"dsmoe/inspect/router"
	"dsmoe/inspect/routing"
	"dsmoe/inspect/stats"
	"dsmoe/text"
	"dsmoe/verify/diff"
)

// documentKind is a kind of JSON document: the name of its schema, and the Go type that it is made of. The number
// in the name counts up when a member loses its name, type or meaning, and stays when a member is added.
type documentKind struct {
	schema string
	of     reflect.Type
}

// documentKinds are all that --json prints. docs/schemas holds their JSON Schemas.
func documentKinds() []documentKind {
	return []documentKind{
		{"dsmoe.error/1", reflect.TypeFor[errorDocument]()},
		{"dsmoe.verify/1", reflect.TypeFor[*verified]()},
		{"dsmoe.convert/1", reflect.TypeFor[*convert.Report]()},
		{"dsmoe.convert.part/1", reflect.TypeFor[*convert.PartReport]()},
		{"dsmoe.convert.plan/1", reflect.TypeFor[*plan.Plan]()},
		{"dsmoe.convert.check/1", reflect.TypeFor[*convert.CheckReport]()},
		{"dsmoe.diff/1", reflect.TypeFor[*diff.Report]()},
		{"dsmoe.diff.pruned/1", reflect.TypeFor[*diff.PrunedReport]()},
		{"dsmoe.synth/1", reflect.TypeFor[*synthesised]()},
		{"dsmoe.demo/1", reflect.TypeFor[*demo]()},
		{"dsmoe.version/1", reflect.TypeFor[*build]()},
		{"dsmoe.inspect/1", reflect.TypeFor[*header.Summary]()},
		{"dsmoe.inspect.ls/1", reflect.TypeFor[*header.Listing]()},
		{"dsmoe.inspect.ls.fold/1", reflect.TypeFor[*header.Patterns]()},
		{"dsmoe.inspect.tree/1", reflect.TypeFor[*header.TreeReport]()},
		{"dsmoe.inspect.audit/1", reflect.TypeFor[*header.AuditReport]()},
		{"dsmoe.inspect.arch/1", reflect.TypeFor[*header.Arch]()},
		{"dsmoe.inspect.arch.compare/1", reflect.TypeFor[*header.Comparison]()},
		{"dsmoe.inspect.mem/1", reflect.TypeFor[*header.MemoryReport]()},
		{"dsmoe.inspect.stats/1", reflect.TypeFor[*stats.Report]()},
		{"dsmoe.inspect.hash/1", reflect.TypeFor[*stats.HashReport]()},
		{"dsmoe.inspect.experts/1", reflect.TypeFor[*experts.Report]()},
		{"dsmoe.inspect.experts.against/1", reflect.TypeFor[*experts.ErrorReport]()},
		{"dsmoe.inspect.router/1", reflect.TypeFor[*router.Report]()},
		{"dsmoe.inspect.routing/1", reflect.TypeFor[*routing.Report]()},
		{"dsmoe.inspect.routing.compare/1", reflect.TypeFor[*routing.Comparison]()},
		{"dsmoe.inspect.report/1", reflect.TypeFor[*report.Report]()},
	}
}

// writeDocument writes a document as JSON that begins with its schema.
func writeDocument(w io.Writer, v any) error {
	for _, d := range documentKinds() {
		if d.of == reflect.TypeOf(v) {
			w = &headed{w, fmt.Sprintf("{\n  \"schema\": %q,", d.schema)}
		}
	}
	if large, ok := v.(interface{ WriteJSON(io.Writer) error }); ok {
		return large.WriteJSON(w)
	}
	return text.WriteJSON(w, v)
}

// headed puts head in the place of the first byte that is written.
type headed struct {
	w    io.Writer
	head string
}

// Write writes p, which is not empty the first time.
func (h *headed) Write(p []byte) (int, error) {
	if h.head == "" {
		return h.w.Write(p)
	}
	_, err := io.WriteString(h.w, h.head)
	if h.head = ""; err != nil {
		return 0, err
	}
	n, err := h.w.Write(p[1:])
	return n + 1, err
}
