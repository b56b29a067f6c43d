package convert

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// statementSchema is what in-toto's Statement v1 with SLSA's provenance v1 demands of the members that are written: the
// specifications have no JSON schema. An unknown member is an error, as it is to protobuf's parsers.
const statementSchema = `{
  "$defs": {"resource": {"type": "object", "required": ["name", "digest"], "additionalProperties": false, "properties": {
    "name": {"type": "string", "minLength": 1}, "uri": {"type": "string", "pattern": "^[a-z0-9]+:"},
    "digest": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
    "annotations": {"type": "object"}}}},
  "type": "object", "additionalProperties": false, "required": ["_type", "subject", "predicateType", "predicate"],
  "properties": {
    "_type": {"const": "https://in-toto.io/Statement/v1"},
    "predicateType": {"const": "https://slsa.dev/provenance/v1"},
    "subject": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/resource"}},
    "predicate": {"type": "object", "additionalProperties": false, "required": ["buildDefinition", "runDetails"], "properties": {
      "buildDefinition": {"type": "object", "additionalProperties": false, "required": ["buildType", "externalParameters"],
        "properties": {"buildType": {"type": "string", "pattern": "^[a-z]+:"}, "externalParameters": {"type": "object"},
          "internalParameters": {"type": "object"},
          "resolvedDependencies": {"type": "array", "items": {"$ref": "#/$defs/resource"}}}},
      "runDetails": {"type": "object", "additionalProperties": false, "required": ["builder"], "properties": {
        "builder": {"type": "object", "additionalProperties": false, "required": ["id"], "properties": {
          "id": {"type": "string", "pattern": "^[a-z]+:"},
          "version": {"type": "object", "additionalProperties": {"type": "string"}}}}}}}}}}`

// TestAttest: the statement is as in-toto and SLSA have it, and names each file of the output by the SHA-256 of its bytes.
// Of an output that changed there is none.
func TestAttest(t *testing.T) {
	t.Parallel()
	dst := filepath.Join(t.TempDir(), "out")
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	_, err := Run(t.Context(), dst, src, Options{plan.Options{DType: tensor.BF16}, Settings{}})
	require.NoError(t, err)
	r, s, err := Attest(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.Empty(t, r.Problems)

	var text bytes.Buffer
	require.NoError(t, s.WriteJSON(&text))
	var schema jsonschema.Schema
	require.NoError(t, json.Unmarshal([]byte(statementSchema), &schema))
	resolved, err := schema.Resolve(nil)
	require.NoError(t, err)
	var document map[string]any
	require.NoError(t, json.Unmarshal(text.Bytes(), &document))
	require.NoError(t, resolved.Validate(document))
	document["signed"] = true
	require.Error(t, resolved.Validate(document))

	names := map[string]string{}
	for _, x := range s.Subject {
		names[x.Name] = x.Digest["sha256"]
	}
	require.Len(t, names, 3)
	for _, name := range []string{"model.safetensors", "config.json", plan.ManifestName} {
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(fixture.Read(t, dst, name)))), names[name], name)
	}
	require.Len(t, s.Predicate.Definition.Dependencies, 3)
	require.True(t, s.Predicate.Definition.Internal.Verified)

	fixture.Poke(t, filepath.Join(dst, "model.safetensors"), 20_000, "x")
	r, s, err = Attest(t.Context(), dst, Settings{})
	require.NoError(t, err)
	require.NotEmpty(t, r.Problems)
	require.Nil(t, s)
}

// TestAttestedDependency: a source on a server has its address.
func TestAttestedDependency(t *testing.T) {
	f := plan.Source{Name: "a.safetensors", Size: 9, Identity: "blake3:0f"}
	require.Equal(t, resource{Name: "a.safetensors", URI: "hf://org/name@c0/a.safetensors", Digest: map[string]string{identity: "0f"},
		Annotations: map[string]any{"size": int64(9)}}, dependency(f, "hf://org/name@c0"))
}
