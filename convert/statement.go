package convert

import (
	"context"
	"io"
	"strings"

	"dsmoe/convert/internal/engine"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// Statement is an in-toto Statement v1 with a predicate of SLSA provenance v1: it says which files a conversion wrote, from
// which files. It is not signed. It holds no times: the same output gives the same bytes.
type Statement struct {
	Type          string     `json:"_type"`         // statementType
	Subject       []resource `json:"subject"`       // every file of the output, with its SHA-256; the manifest last
	PredicateType string     `json:"predicateType"` // provenanceType
	Predicate     provenance `json:"predicate"`
}

const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	buildType      = "urn:dsmoe:convert:v1" // the parameters are those of a dsmoe.manifest/4
	builderID      = "urn:dsmoe"
	identity       = "dsmoe_identity_blake3" // plan.Source.Identity: BLAKE3 of a weight file's header, not of its bytes
)

// resource is a ResourceDescriptor of in-toto.
type resource struct {
	Name        string            `json:"name"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest"`                // hexadecimal digits by the name of the algorithm
	Annotations map[string]any    `json:"annotations,omitempty"` // "size": bytes of a source
}

// provenance is a predicate of SLSA provenance v1.
type provenance struct {
	Definition struct {
		BuildType  string `json:"buildType"`
		Parameters any    `json:"externalParameters"` // the options of the manifest
		Internal   struct {
			Plan    string `json:"plan"`    // hash of the plan
			Weights string `json:"weights"` // hash of the plan's weights
			// Verified says that the output was read again and compared with the source.
			Verified bool `json:"verified"`
		} `json:"internalParameters"`
		// Dependencies are the weight files that were read. The manifest has no hash of their bytes, but of their headers
		// and, of a verified output, of the bytes of each tensor; a source on a server has its address.
		Dependencies []resource `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	Run struct {
		Builder struct {
			ID      string            `json:"id"`
			Version map[string]string `json:"version"` // "dsmoe": the program that converted
		} `json:"builder"`
	} `json:"runDetails"`
}

// Attest checks the converted checkpoint at path, as Check does, and states what it is. The statement is nil if the report
// has problems.
func Attest(ctx context.Context, path string, s Settings) (*CheckReport, *Statement, error) {
	r, err := engine.Sum(ctx, path, s)
	if err != nil {
		return nil, nil, err
	}
	report := &CheckReport{Path: path, Plan: r.Plan, Verified: r.Verified, Tensors: r.Tensors, Bytes: r.Bytes, Problems: r.Problems}
	if len(r.Problems) > 0 {
		return report, nil, nil
	}
	m := r.Manifest
	x := &Statement{Type: statementType, PredicateType: provenanceType}
	for _, f := range r.Files {
		x.Subject = append(x.Subject, resource{Name: f.Name, Digest: map[string]string{"sha256": f.SHA256}})
	}
	d, run := &x.Predicate.Definition, &x.Predicate.Run
	d.BuildType, d.Parameters = buildType, m.Options
	d.Internal.Plan, d.Internal.Weights, d.Internal.Verified = m.Plan, m.Weights, m.Verified
	d.Dependencies = []resource{}
	for _, f := range m.Sources {
		d.Dependencies = append(d.Dependencies, dependency(f, m.Origin))
	}
	run.Builder.ID, run.Builder.Version = builderID, map[string]string{"dsmoe": m.Tool}
	return report, x, nil
}

// dependency describes a weight file that was read, of a source at an address, "" on the disk.
func dependency(f plan.Source, origin string) resource {
	r := resource{Name: f.Name, Digest: map[string]string{identity: strings.TrimPrefix(f.Identity, "blake3:")},
		Annotations: map[string]any{"size": f.Size}}
	if origin != "" {
		r.URI = origin + "/" + f.Name
	}
	return r
}

// WriteJSON writes the statement.
func (x *Statement) WriteJSON(w io.Writer) error { return text.WriteJSON(w, x) }
