"""Every rule of a catalog: the least that breaks it, what is said and where, and what is said of its good twin: nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import write_catalog

from derive.catalog import load, load_without_tests
from derive.catalog.build import build, check_catalog, require_sound
from derive.catalog.language.json_schema import NO_EFFECT, catalog_schema
from derive.errors import CatalogError
from derive.protocol.specs import AdvanceStep

BASE = """\
collections:
  a/source:
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties:
        id: {type: integer}
        who: {type: string}
        deep: {type: object, properties: {x: {type: string}}}
    key: [/id]
    projections:
      part: {location: /who, partition: true}
  a/derived:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: first
          source: {name: a/source, partitions: {include: {part: [x]}}}
          shuffle: {key: [/id]}
          lambda: SELECT $id;
        - name: second
          source: a/source
          shuffle: any
          lambda: SELECT $id;
tests:
  t/test:
    - ingest: {collection: a/source, documents: [{id: 1}]}
    - verify: {collection: a/derived, documents: [{id: 1}, {id: 2}]}
"""


@dataclass(frozen=True)
class Rule:
    """What of BASE is replaced, by what that is wrong (its issue: code, line, column, message) and by what is right."""

    name: str
    old: str
    bad: str
    good: str
    issue: tuple[str, int, int, str]
    hint: str | None = None


PROPERTIES = "      properties:\n        id: {type: integer}\n        who: {type: string}"
DEFINED = (
    "      $defs: {who: {$anchor: anchor, type: string}}\n      properties:\n        id: {type: integer}\n        "
)
WHO = "who: {type: string}"
S = "who: {type: string}\n        s: {type: object, properties: {"
ITEMS = "who: {type: string}\n        l: {type: array, items: {type: object, properties: {who: {type: string}}, additionalProperties: false}, "
SUMMED = "      $defs: {sum: {reduce: {strategy: sum}}}\n      properties:\n        id: {type: integer}\n        "
ENDPOINT = "{endpoint: {connector: {image: an/image, config: {}}}, bindings: []}"
SPLIT = "schema: {type: object, properties: {id: {type: integer}}}\n    key: [/id]\n    derive"
FIRST = "shuffle: {key: [/id]}"
SECOND = "shuffle: any"
BOTH = f"{FIRST}\n          lambda: SELECT $id;\n        - name: second\n          source: a/source\n          {SECOND}"
DOCUMENTS = "documents: [{id: 1}]"


def split(write: str, read: str, key: str = "/id") -> str:
    schemas = (
        f"{name}: {{type: object, properties: {{id: {{type: {kind}}}}}}}"
        for name, kind in (("writeSchema", write), ("readSchema", read))
    )
    return "\n    ".join(schemas) + f"\n    key: [{key}]\n    derive"


RULES = [
    # Names
    Rule("a name is tokens between slashes", "a/derived:\n", "a//new: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}\n  a/derived:\n", "a/new.1: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}\n  a/derived:\n", ("E101", 14, 3, "'a//new' cannot be the name of a collection")),
    Rule("a test's name is text", "t/test:", '" t":', "Expect we can append arrays:", ("E101", 29, 3, "' t' cannot be the name of a test")),
    Rule("a test's name is one line", "t/test:", r'"a\nb":', '"a: b/c/, «été» – 100 %?":', ("E101", 29, 3, r"'a\nb' cannot be the name of a test"), "one line of text, without a space at its ends"),
    Rule("a test's name is not empty", "t/test:", "'':", "1:", ("E101", 29, 3, "'' cannot be the name of a test")),
    Rule("captures have names, too", "tests:", f"captures: {{a b: {ENDPOINT}}}\ntests:", f"captures: {{a/b: {ENDPOINT}}}\ntests:", ("E101", 28, 12, "'a b' cannot be the name of a capture")),
    Rule("materializations have names, too", "tests:", f"materializations: {{a//b: {ENDPOINT}}}\ntests:", f"materializations: {{a/b: {ENDPOINT}}}\ntests:", ("E101", 28, 20, "'a//b' cannot be the name of a materialization")),
    Rule("a transform's name is not that of a repeated reading", "name: second", "name: second.v2", "name: second-v2", ("E101", 24, 17, "'second.v2' cannot be the name of a transform")),
    Rule("a transform's name is one token", "name: second", "name: sec/ond", "name: sec-ond", ("E101", 24, 17, "'sec/ond' cannot be the name of a transform")),
    Rule("a partition's name is one token", "part: {location", "'p t': {location", "part: {location", ("E101", 13, 7, "'p t' cannot be the name of a logical partition")),
    Rule("a projection's name is a pointer's", "part: {location", "x~y: /who\n      part: {location", "x y!: /who\n      part: {location", ("E101", 13, 7, "'x~y' cannot be the name of a projection")),
    Rule("names differ by more than case", "t/test:", "A/Source:", "A/Sources:", ("E102", 29, 3, "test 'A/Source' collides with collection 'a/source'")),
    Rule("one name is one thing", "tests:", f"captures: {{a/source: {ENDPOINT}}}\ntests:", f"captures: {{a/other: {ENDPOINT}}}\ntests:", ("E102", 2, 3, "collection 'a/source' collides with capture 'a/source'")),
    Rule("names differ by more than their composition", "t/test:", "t/fi: []\n  t/\ufb01:", "t/fi: []\n  t/f:", ("E102", 30, 3, "test 't/\ufb01' collides with test 't/fi'")),
    Rule("no name is a folder of another", "tests:", f"materializations: {{a/source/x: {ENDPOINT}}}\ntests:", f"materializations: {{a/sources/x: {ENDPOINT}}}\ntests:", ("E102", 2, 3, "collection 'a/source' is a prohibited prefix of materialization 'a/source/x'"), "rename one of them: no name may be a folder of another one"),
    Rule("transforms have names of their own", "name: second", "name: first", "name: third", ("E103", 24, 17, "transform 'first' of 'a/derived' is defined a second time; first at flow.yaml:20:17")),
    Rule("transforms differ by more than case", "name: second", "name: First", "name: third", ("E103", 24, 17, "transform 'First' of 'a/derived' collides with transform 'first'")),
    Rule("a former name is nobody's now", "name: second", "name: second\n          formerly: first", "name: second\n          formerly: third", ("E106", 25, 21, "'formerly' of 'second' names a transform that 'a/derived' still has"), "write the name from before the rename"),
    Rule("projections differ by more than case", "part: {location", "PART: /who\n      part: {location", "PARTS: /who\n      part: {location", ("E104", 14, 7, "projection 'part' collides with projection 'PART'")),
    # References
    Rule("a source is defined", "source: a/source", "source: a/sourse", "source: a/derived", ("E201", 25, 19, "collection 'a/sourse', referenced by transform 'second' of 'a/derived', is not defined"), "did you mean 'a/source'? (flow.yaml:2:3)"),
    Rule("a tested collection is defined", "collection: a/derived", "collection: b/nothing-like-it", "collection: a/derived", ("E201", 31, 28, "collection 'b/nothing-like-it', referenced by test 't/test', is not defined"), "define or import the collection, or remove it from test 't/test'"),
    Rule("a source of SQL is defined", "source: a/source\n", "source: sql/public/t\n", "source: a/derived\n", ("E201", 25, 19, "collection 'sql/public/t', referenced by transform 'second' of 'a/derived', is not defined"), "define a collection of this name, with the columns of the table or view: see 'A table as a source' in docs/sql-queries.md"),
    Rule("what is no collection is no source", "source: a/source\n", "source: t/test\n", "source: a/derived\n", ("E201", 25, 19, "collection 't/test', referenced by transform 'second' of 'a/derived', is not defined")),
    # Keys
    Rule("a key is not empty", "key: [/id]\n    proj", "key: []\n    proj", "key: [/id, /who]\n    proj", ("E301", 11, 10, "the key of 'a/source' is empty")),
    Rule("a key is of pointers", "key: [/id]\n    proj", "key: [id]\n    proj", "key: [/deep/x]\n    proj", ("E302", 11, 11, "the key must be a JSON pointer, but is 'id'"), "did you mean '/id'?"),
    Rule("a pointer has no empty token", "key: [/id]\n    proj", "key: [/deep//x]\n    proj", "key: [/deep/x]\n    proj", ("E302", 11, 11, "the key must be a JSON pointer, but is '/deep//x'")),
    Rule("a key is known to the schema, deep down, too", "key: [/id]\n    proj", "key: [/deep/xx]\n    proj", "key: [/deep/x]\n    proj", ("E303", 11, 11, "the key '/deep/xx' is not mentioned in the schema"), "did you mean '/deep/x'?"),
    Rule("a lambda has its name", "any\n          lambda:", "any\n          lamda:", "any\n          lambda: ", ("E011", 27, 11, "a transform has no property 'lamda'"), "did you mean 'lambda'?"),
    Rule("a key can exist", "key: [/id]\n    proj", "key: [/id/x]\n    proj", "key: [/id]\n    proj", ("E303", 11, 11, "the key '/id/x' cannot exist in the schema")),
    Rule("a key is no misspelt property", "        id: {type: integer}\n", "        idd: {type: integer}\n", "        id: {type: integer}\n", ("E304", 11, 11, "the key '/id' must be a boolean, integer or string, but may be anything"), "did you mean '/idd'?"),
    Rule("a key is a scalar", "key: [/id]\n    proj", "key: [/deep]\n    proj", "key: [/id]\n    proj", ("E304", 11, 11, "the key '/deep' must be a boolean, integer or string, but may be object")),
    Rule("a key has one type", "id: {type: integer}\n", "id: {type: [integer, string]}\n", "id: {type: [integer, 'null']}\n", ("E304", 11, 11, "the key '/id' must have one type, but may have any of integer, string")),
    Rule("a key is no float", "id: {type: integer}\n", "id: {type: number}\n", "id: {type: integer}\n", ("E304", 11, 11, "the key '/id' must be a boolean, integer or string, but is a number, which may have a fraction")),
    Rule("a key has one type in both schemas", SPLIT, split("string", "integer"), split("[integer, 'null']", "integer"), ("E307", 17, 11, "the key '/id' is an integer in the read schema, but a string in the write schema")),
    Rule("a key is known to the write schema", SPLIT, split("integer", "integer").replace("id", "no", 1), split("integer", "integer"), ("E303", 17, 11, "the key '/id' is not mentioned in the write schema")),
    Rule("a key is not reduced", "id: {type: integer}\n", "id: {type: integer, reduce: {strategy: sum}}\n", "id: {type: integer, reduce: {strategy: lastWriteWins}}\n", ("E308", 11, 11, "the key '/id' has the strategy 'sum', but a key cannot be reduced"), "the strategy is at flow.yaml:8:37"),
    # Projections and logical partitions
    Rule("a partition is a scalar", "part: {location: /who", "part: {location: /deep", "part: {location: /deep/x", ("E304", 13, 24, "the logical partition 'part' at '/deep' must be a boolean, integer or string, but may be object")),
    Rule("a projection has a pointer", "part: {location", "p: who\n      part: {location", "p: /who\n      part: {location", ("E302", 13, 10, "projection 'p' needs a JSON pointer as its location")),
    Rule("a projection's location is known", "part: {location", "p: /deep/y\n      part: {location", "p: /deep/x\n      part: {location", ("E303", 13, 10, "projection 'p' at '/deep/y' is not mentioned in the schema"), "did you mean '/deep/x'?"),
    Rule("a projection leaves a field where it is", "part: {location", "id: /who\n      part: {location", "id: /id\n      part: {location", ("E305", 13, 11, "projection 'id' is at '/who', but the field 'id' is '/id'")),
    Rule("a projection leaves a nested field where it is", "part: {location", "deep/x: /who\n      part: {location", "deep/x: /deep/x\n      part: {location", ("E305", 13, 15, "projection 'deep/x' is at '/who', but the field 'deep/x' is '/deep/x'")),
    Rule("a projection leaves flow_document where it is", "part: {location", "flow_document: /who\n      part: {location", "flow_document: ''\n      part: {location", ("E305", 13, 22, "projection 'flow_document' is at '/who', but the field 'flow_document' is the whole document")),
    # Selectors
    Rule("a selected field is a partition", "include: {part: [x]}", "include: {who: [x]}", "exclude: {part: [x]}", ("E306", 21, 59, "'who' is not a logical partition of 'a/source'"), "declare it there: 'projections: {who: {location: /who, partition: true}}'"),
    Rule("a selected field exists", "include: {part: [x]}", "include: {parts: [x]}", "include: {part: []}", ("E309", 21, 59, "'a/source' has no field 'parts'"), "did you mean 'part'?"),
    Rule("a selected value has the field's type", "include: {part: [x]}", "include: {part: [x, 5]}", "include: {part: [x, '5']}", ("E310", 21, 69, "the logical partition 'part' cannot be 5: its type is string")),
    Rule("a selected value is not empty", "include: {part: [x]}", "exclude: {part: ['']}", "exclude: {part: [' ']}", ("E311", 21, 66, "the logical partition 'part' cannot be selected by an empty string")),
    Rule("a verified selection is checked, too", "collection: a/derived,", "collection: {name: a/derived, partitions: {include: {id: [1]}}},", "collection: {name: a/derived, partitions: {}},", ("E306", 31, 69, "'id' is not a logical partition of 'a/derived'")),
    # Schemas
    Rule("a collection has one schema or two", SPLIT, SPLIT.replace("schema", "writeSchema", 1), split("integer", "integer"), ("E401", 14, 3, "collection 'a/derived' needs either 'schema', or both 'readSchema' and 'writeSchema'")),
    Rule("documents are objects", "      type: object\n      required", "      type: [object, array]\n      required", "      type: object\n      required", ("E402", 4, 7, "the schema of 'a/source' must be of type object, but allows array, object"), "add 'type: object'"),
    Rule("a schema is a JSON Schema", "{type: object, properties: {x", "{type: object, minProperties: x, properties: {x", "{type: object, minProperties: 1, properties: {x", ("E403", 4, 7, "the schema of 'a/source' is not a JSON Schema: at '/properties/deep/minProperties', \"x\" is not of type \"integer\"")),
    Rule("a type is one of JSON's", WHO, "who: {type: int}", "who: {type: string}", ("E403", 9, 21, "JSON has no type 'int'"), "did you mean 'integer'?"),
    Rule("a reference names something", PROPERTIES, DEFINED + "who: {$ref: '#/$defs/wo'}", DEFINED + "who: {$ref: '#/$defs/who'}", ("E404", 10, 21, "'$ref: #/$defs/wo' has no target"), "did you mean '#/$defs/who'?"),
    Rule("an anchor exists", PROPERTIES, DEFINED + "who: {$ref: '#wo'}", DEFINED + "who: {$ref: '#anchor'}", ("E404", 10, 21, "'$ref: #wo' has no target")),
    Rule("a keyword is known", WHO, "who: {type: string, fromat: date}", "who: {type: string, format: date, x-mine: 1}", ("E405", 9, 29, "JSON Schema has no keyword 'fromat'"), "did you mean 'format'?"),
    Rule("a strategy is known", WHO, "who: {type: string, reduce: {strategy: apend}}", "who: {type: string, reduce: {strategy: firstWriteWins}}", ("E406", 9, 48, "there is no strategy 'apend'"), "did you mean 'append'?"),
    Rule("a reduction has a strategy", WHO, "who: {type: string, reduce: merge}", "who: {type: string, reduce: {strategy: maximize}}", ("E406", 9, 37, "'reduce' needs a strategy, but is 'merge'"), "write 'reduce: {strategy: merge}'"),
    Rule("a strategy's parent has one", "{x: {type: string}}", "{x: {type: string, reduce: {strategy: minimize}}}", "{x: {type: string}}, reduce: {strategy: minimize}", ("E411", 10, 69, "'/deep/x' has the strategy 'minimize', but '/deep' above it has no strategy, so the annotation would never apply"), "add 'reduce: {strategy: merge}' there"),
    Rule("a sum is of numbers", WHO, "who: {type: string, reduce: {strategy: sum}}", "who: {type: string}\n        n: {type: number, reduce: {strategy: sum}}", ("E412", 9, 48, "'sum' needs a number at '/who', but the schema allows string")),
    Rule("a sum at the root is of numbers", "reduce: {strategy: merge}", "reduce: {strategy: sum}", "reduce: {strategy: lastWriteWins}", ("E412", 6, 26, "'sum' needs a number at the root of the document, but the schema allows object"), "'merge' reduces objects"),
    Rule("objects and arrays merge", WHO, "who: {type: string, reduce: {strategy: merge}}", "who: {type: string}\n        n: {type: array, reduce: {strategy: merge}}", ("E413", 9, 48, "'merge' needs an object or an array at '/who', but the schema allows string")),
    Rule("a set is an object", WHO, "who: {type: string, reduce: {strategy: set}}", "who: {type: string}\n        s: {type: object, reduce: {strategy: set}}", ("E414", 9, 48, "'set' needs an object at '/who', but the schema allows string")),
    Rule("a set has three properties", WHO, "who: {type: string}\n        s: {type: object, properties: {ad: {type: array}}, reduce: {strategy: set}}", "who: {type: string}\n        s: {type: object, properties: {add: {type: array}}}", ("E415", 10, 79, "'set' at '/s' has the properties 'add', 'intersect' and 'remove', and not 'ad'")),
    Rule("a set's terms are arrays or objects", WHO, S + "add: {type: integer}}, reduce: {strategy: set}}", S + "add: {type: object}, remove: {}}, reduce: {strategy: set}}", ("E414", 10, 82, "'set' needs an array or an object at '/s/add', but the schema allows integer")),
    Rule("a set of arrays has a key", WHO, "who: {type: string}\n        s: {type: object, additionalProperties: {type: array}, reduce: {strategy: set}}", "who: {type: string}\n        s: {type: object, additionalProperties: {type: array}, reduce: {strategy: set, key: ['']}}", ("E419", 10, 83, "'set' at '/s' needs a key, because '/s/add' is an array"), "an empty pointer, as in 'key: [\"\"]', is the value itself: use it for strings and numbers"),
    Rule("arrays append", WHO, "who: {type: string}\n        n: {type: [array, integer], reduce: {strategy: append}}", "who: {type: string}\n        n: {type: [array, 'null'], reduce: {strategy: append}}\n        m: {reduce: {strategy: append}}", ("E418", 10, 56, "'append' needs an array at '/n', but the schema allows array, integer")),
    Rule("what matches a pattern has a type", "required: [id]", "required: [id]\n      patternProperties: {'^n': {type: integer, reduce: {strategy: append}}}", "required: [id]\n      patternProperties: {'^n': {type: array, reduce: {strategy: append}}, '^m': {reduce: {strategy: append}}}", ("E418", 6, 68, "'append' needs an array at '/*', but the schema allows integer")),
    Rule("a branch has the type of what it is in", WHO, WHO + "\n        n: {type: integer, anyOf: [{minimum: 1, reduce: {strategy: append}}]}", WHO + "\n        n: {type: [integer, array], if: {type: array}, then: {reduce: {strategy: append}}}", ("E418", 10, 68, "'append' needs an array at '/n', but the schema allows integer")),
    Rule("a branch has a type of its own", WHO, WHO + "\n        n: {anyOf: [{type: [integer, array], reduce: {strategy: append}}]}", WHO + "\n        n: {anyOf: [{type: integer}, {type: array, reduce: {strategy: append}}]}", ("E418", 10, 65, "'append' needs an array at '/n', but the schema allows array, integer")),
    Rule("schemas are objects", WHO, "who: {type: string, reduce: {strategy: jsonSchemaMerge}}", "who: {type: string}\n        n: {type: object, reduce: {strategy: jsonSchemaMerge}}", ("E418", 9, 48, "'jsonSchemaMerge' needs an object at '/who', but the schema allows string")),
    Rule("a strategy has its options only", WHO, "who: {type: string, reduce: {strategy: minimize, delete: true}}", "who: {type: string, reduce: {strategy: lastWriteWins, delete: true}}", ("E406", 9, 37, "the reduction of '/who': the strategy 'minimize' has no option 'delete'"), "its options: key"),
    Rule("a member's key is no property without a name", WHO, S + "add: {type: array, items: {type: string}}}, reduce: {strategy: set, key: [/]}}", S + "add: {type: array, items: {type: string}}}, reduce: {strategy: set, key: ['']}}", ("E419", 10, 114, "the key '/' of 'set' at '/s' is no JSON pointer without empty names"), "an empty pointer, as in 'key: [\"\"]', is the value itself"),
    Rule("a key on a condition is no property without a name", WHO, WHO + "\n        l: {anyOf: [{items: {}, reduce: {strategy: merge, key: [/]}}]}", WHO + "\n        l: {anyOf: [{items: {}, reduce: {strategy: merge, key: ['']}}]}", ("E419", 10, 65, "the key '/' of 'merge' at '/l' is no JSON pointer without empty names"), "an empty pointer, as in 'key: [\"\"]', is the value itself"),
    Rule("a member's key can exist", WHO, S + "add: {type: array, items: {type: string}}}, reduce: {strategy: set, key: [/k]}}", S + "add: {type: array, items: {type: [string, object]}}}, reduce: {strategy: set, key: [/k]}}", ("E419", 10, 114, "the key '/k' of 'set' at '/s' cannot exist there: the schema allows string"), "an empty pointer, as in 'key: [\"\"]', is the value itself"),
    Rule("an item's key can exist", WHO, ITEMS + "reduce: {strategy: merge, key: [/who, /wh]}}", ITEMS + "reduce: {strategy: merge, key: [/who]}}", ("E419", 10, 151, "the key '/wh' of 'merge' at '/l' cannot exist there: the schema allows object"), "did you mean '/who'?"),
    Rule("an extreme's key can exist", WHO, "who: {type: string, reduce: {strategy: maximize, key: [/at]}}", "who: {type: string, reduce: {strategy: maximize, key: ['']}}", ("E419", 9, 64, "the key '/at' of 'maximize' at '/who' cannot exist there: the schema allows string"), "an empty pointer, as in 'key: [\"\"]', is the value itself"),
    Rule("what a reduction stands for is not inspected", PROPERTIES, SUMMED + "who: {type: string, $ref: '#/$defs/sum'}", SUMMED + "who: {type: string, $ref: '#/$defs/sum', reduce: {strategy: minimize}}", ("E412", 7, 40, "'sum' needs a number at '/who', but the schema allows string")),
    Rule("a type is known", WHO, "who: {type: strin}", "who: {type: string, x-mine: {type: strin}}", ("E403", 9, 21, "JSON has no type 'strin'"), "did you mean 'string'?"),
    Rule("each type is known", WHO, "who: {type: [string, timestamp]}", "who: {type: [string, 'null']}\n        f: {type: fractional}", ("E403", 9, 30, "JSON has no type 'timestamp'"), "types: array, boolean, integer, null, number, object, string"),
    Rule("a default is valid", WHO, "who: {type: string, default: 5}", "who: {type: string, default: '5'}", ("E416", 9, 38, "the default of '/who' is 5, which its own schema does not allow")),
    Rule("a default is valid where it refers to", PROPERTIES, DEFINED + "who: {$ref: '#/$defs/who', default: 5}", DEFINED + "who: {$ref: '#/$defs/who', default: x}", ("E416", 10, 45, "the default of '/who' is 5, which its own schema does not allow")),
    Rule("what must exist can", "required: [id]", "required: [id, never]\n      allOf: [{properties: {never: false}}]", "required: [id]\n      allOf: [{properties: {never: false}}]", ("E417", 6, 36, "'/never' must exist, but its schema allows no value there")),
    # Derivations
    Rule("notBefore comes first", "source: a/source\n", "source: {name: a/source, notBefore: 2024-01-01T00:00:00Z, notAfter: 2024-01-01T00:00:00Z}\n", "source: {name: a/source, notBefore: 2024-01-01T00:00:00Z, notAfter: 2024-01-01T00:00:01Z}\n", ("E501", 25, 47, "'notBefore' must come before 'notAfter'")),
    Rule("notBefore is a time", "source: a/source\n", "source: {name: a/source, notBefore: today}\n", "source: {name: a/source, notBefore: 2024-01-01T00:00:00Z}\n", ("E502", 25, 47, "'today' is not a time such as 2023-01-23T01:00:00Z")),
    Rule("a shuffle key is not empty", FIRST, "shuffle: {key: []}", "shuffle: {key: [/who]}", ("E503", 22, 26, "a shuffle key is an array of at least one JSON pointer")),
    Rule("a shuffle key is of pointers", FIRST, "shuffle: {key: [id]}", FIRST, ("E302", 22, 27, "the shuffle key must be a JSON pointer, but is 'id'"), "did you mean '/id'?"),
    Rule("a shuffle key is known", FIRST, "shuffle: {key: [/ident]}", FIRST, ("E303", 22, 27, "the shuffle key '/ident' is not mentioned in the schema"), "known: /deep, /id, /who"),
    Rule("a shuffle key is a scalar", FIRST, "shuffle: {key: [/deep]}", "shuffle: {key: [/deep/x]}", ("E304", 22, 27, "the shuffle key '/deep' must be a boolean, integer or string, but may be object")),
    Rule("shuffle keys have the same types", SECOND, "shuffle: {key: [/who]}", FIRST, ("E504", 22, 20, "the shuffle key of 'first' has types [integer], but 'second' has [string]")),
    Rule("shuffle keys have the same length", SECOND, "shuffle: {key: [/id, /who]}", FIRST, ("E504", 22, 20, "the shuffle key of 'first' has types [integer], but 'second' has [integer, string]")),
    Rule("an absent shuffle is by the source's key", BOTH, BOTH.replace("/id", "/who").replace(SECOND, "priority: 0"), BOTH.replace(SECOND, "priority: 0"), ("E504", 22, 20, "the shuffle key of 'first' has types [string], but 'second' has [integer]")),
    Rule("shuffle keys have the types that are said", "      transforms:", "      shuffleKeyTypes: [string]\n      transforms:", "      shuffleKeyTypes: [integer]\n      transforms:", ("E504", 23, 20, "the shuffle key of 'first' has types [integer], but 'shuffleKeyTypes' has [string]")),
    Rule("a type of a shuffle key is a scalar's", "      transforms:", "      shuffleKeyTypes: [integer, number]\n      transforms:", "      shuffleKeyTypes: [integer]\n      transforms:", ("E505", 19, 34, "the type of a shuffle key is 'boolean', 'integer' or 'string'")),
    Rule("a computed shuffle key has known types", FIRST, "shuffle: {lambda: SELECT $id}", "shuffle: {lambda: SELECT $id}\n          lambda: SELECT 1\n        - name: third\n          source: a/source", ("E506", 22, 29, "the types of the key that the shuffle lambda of 'first' computes are unknown"), "add 'shuffleKeyTypes', such as [string], to 'derive'"),
    # Code
    Rule("a migration applies", "{sqlite: {}}", "{sqlite: {migrations: [CREATE TABEL t (a)]}}", "{sqlite: {migrations: [CREATE TABLE t (a)]}}", ("E521", 18, 44, "migration 0 of 'a/derived' is refused by SQLite: near \"TABEL\": syntax error")),
    Rule("a lambda prepares", "shuffle: any\n          lambda: SELECT $id;", "shuffle: any\n          lambda: SELECT nope;", "shuffle: any\n          lambda: SELECT 1;", ("E522", 27, 26, "the lambda of transform 'second' is refused by SQLite: no such column: nope")),
    Rule("a parameter is a field", "shuffle: any\n          lambda: SELECT $id;", "shuffle: any\n          lambda: SELECT $deep$y;", "shuffle: any\n          lambda: SELECT $deep$x;", ("E523", 27, 26, "$deep$y is not a field of 'a/source', which transform 'second' reads"), "did you mean $deep$x?"),
    # Tests
    Rule("documents are objects in tests", DOCUMENTS, "documents: {id: 1}", DOCUMENTS, ("E601", 30, 49, "'documents' must be an array of objects")),
    Rule("verified documents are in key order", "[{id: 1}, {id: 2}]", "[{id: 1}, {id: 3}, {id: 2}]", "[{id: 1}, {id: 2}, {id: 2}]", ("E602", 31, 69, "the expected documents are not in the order of the key of 'a/derived'")),
    Rule("verified documents that leave out the key come in any place", "[{id: 1}, {id: 2}]", "[{id: 3}, {}, {id: 2}]", "[{id: 1}, {}, {id: 2}, {}]", ("E602", 31, 64, "the expected documents are not in the order of the key of 'a/derived'")),
    Rule("verified documents have keys", "[{id: 1}, {id: 2}]", f"[{{id: 1}}, {{id: {1 << 2040}}}]", f"[{{id: 1}}, {{id: {(1 << 2040) - 1}}}]", ("E604", 31, 60, "an integer of 256 bytes cannot be part of a key: the limit is 255 bytes")),
    Rule("an ingested document is valid", DOCUMENTS, "documents: [{id: 1}, {id: x}]", "documents: [{id: 1}, {id: 2}]", ("E604", 30, 59, "document of 'a/source' fails its schema at '/id': \"x\" is not of type \"integer\" (keyword /properties/id/type)")),
    Rule("a tested source has no times", "collection: a/derived,", "collection: {name: a/derived, notBefore: 2024-01-01T00:00:00Z},", "collection: {name: a/derived},", ("E011", 31, 46, "a source has no property 'notBefore'")),
]  # fmt: skip


def found(folder: Path, text: str) -> list[tuple[str, int, int, str, str | None]]:
    issues = check_catalog(write_catalog(folder, text).name).issues
    return [(each.code, each.position.line, each.position.column, each.message, each.hint) for each in issues]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_check_rule_reports_its_violations(rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert BASE.count(rule.old) == 1

    issues = found(tmp_path, BASE.replace(rule.old, rule.bad))

    assert [each[:4] for each in issues] == [rule.issue]
    if rule.hint is not None:
        assert issues[0][4] == rule.hint


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_check_rule_accepts_a_valid_variant(rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert found(tmp_path, BASE.replace(rule.old, rule.good)) == []


def test_base_catalog_has_no_issues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert found(tmp_path, BASE) == []


def test_fault_in_a_shared_file_is_reported_once_at_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared.yaml").write_text(
        "type: object\nproperties:\n  id: {type: integer}\n  n: {$ref: 'more.yaml#/$defs/n'}\n"
    )
    (tmp_path / "more.yaml").write_text("$defs:\n  n: {type: string, default: 5}\n")
    text = "collections:\n" + "".join(f"  a/{name}: {{schema: shared.yaml, key: [/id]}}\n" for name in "xyz")

    issues = check_catalog(write_catalog(tmp_path, text).name).issues

    assert [(each.code, str(each.position), each.message) for each in issues] == [
        ("E416", "more.yaml:2:30", "the default of '/n' is 5, which its own schema does not allow")
    ]


def test_dangling_references_in_other_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared.yaml").write_text("$defs:\n  good: {type: object, properties: {id: {type: integer}}}\n")
    text = "collections:\n  a/x: {schema: 'shared.yaml#/$defs/god', key: [/id]}\n  a/y: {schema: 'shared.yaml#/$defs/good', key: [/id]}\n"

    assert found(tmp_path, text) == [
        ("E404", 2, 17, "'$ref: shared.yaml#/$defs/god' has no target", "did you mean '#/$defs/good'?")
    ]


def test_ingested_documents_are_checked_by_both_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.yaml").write_text("- {id: 1}\n- {id: -1}\n- {id: 11}\n")
    schemas = "writeSchema: {type: object, properties: {id: {type: integer, minimum: 0}}}, readSchema: {type: object, properties: {id: {type: integer, maximum: 9}}}"
    text = f"collections: {{a/x: {{{schemas}, key: [/id]}}}}\ntests: {{t: [ingest: {{collection: a/x, documents: docs.yaml}}]}}\n"

    issues = check_catalog(write_catalog(tmp_path, text).name).issues

    assert [(each.code, str(each.position), each.message) for each in issues] == [
        ("E604", "docs.yaml:2:3", "document of 'a/x' fails its write schema at '/id': -1 is less than the minimum of 0 (keyword /properties/id/minimum)"),
        ("E604", "docs.yaml:3:3", "document of 'a/x' fails its read schema at '/id': 11 is greater than the maximum of 9 (keyword /properties/id/maximum)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{id: 1, who: x, other: y}", []),
        ("{id: 1, woh: x}", [(27, "'woh', which the schema of 'a/source' does not mention", "did you mean 'who'?")]),
        ("{id: 1, who: x, whom: y}", []),  # both may be meant
        (
            "{id: 1, deep: {y: 1, x: 2}, list: [{idd: 1}], shut: {sum: 1}}",
            [
                (55, "'idd', which the schema of 'a/source' does not mention", "did you mean 'ide'?"),
                (72, "'sum', which the schema of 'a/source' refuses", "did you mean 'sums'?"),
            ],
        ),
        ("{id: 1, shut: {odd: 1}}", [(34, "'odd', which the schema of 'a/source' refuses", None)]),
    ],
)
def test_misspelt_properties_of_expected_documents_are_reported(
    document: str, expected: list[tuple[int, str, str | None]], tmp_path: Path
) -> None:
    more = [
        "who: {type: string}",
        "list: {type: array, items: {type: object, properties: {ide: {type: integer}}}}",
        "shut: {type: object, properties: {sums: {type: integer}}, additionalProperties: false}",
    ]
    text = BASE.replace("who: {type: string}", "\n        ".join(more), 1)
    text += f"  t/more:\n  - verify:\n      collection: a/source\n      documents: [{document}, {document}]\n"

    built = build(write_catalog(tmp_path, text))

    assert built.issues == ()
    assert [
        (note.position.column, note.message.removeprefix("the test expects "), note.hint) for note in built.notes
    ] == expected


def test_recursive_and_conditional_schemas_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node = "{type: object, properties: {id: {type: integer}, next: {$ref: '#'}, list: {type: array, items: {type: string, default: 1}}}, patternProperties: {'^x': {default: 2, type: string}}}"
    text = f"collections:\n  a/x: {{key: [/id], schema: {node}}}\n"

    assert [each[:4] for each in found(tmp_path, text)] == [
        ("E416", 2, 148, "the default of '/list/*' is 1, which its own schema does not allow"),
        ("E416", 2, 190, "the default of '/*' is 2, which its own schema does not allow"),
    ]


def test_check_reports_all_errors_in_one_run_except_dependent_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = BASE.replace("[/id]\n    derive", "[/idd]\n    derive").replace("SELECT $id;", "SELECT nope;", 1)
    text = text.replace(
        "\ntests:",
        """
  b/derived:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: first, source: a/source, lambda: SELECT nope;}]
  b/disabled:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      shards: {disable: true}
      transforms: [{name: first, source: a/source, lambda: SELECT nope;}]
tests:""",
    )

    assert [each[:3] for each in found(tmp_path, text)] == [("E303", 16, 11), ("E522", 33, 67)]


# Each fault of a catalog has a code, a position, and a suggestion.


BUILT = """\
collections:
  acme/transfers:
    schema: {type: object, required: [id], properties: {id: {type: integer}, who: {type: string}}}
    key: [/id]
  acme/derived:
    schema: {type: object, properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: first
          source: acme/transfers
          shuffle: any
          lambda: SELECT $id;
"""


def test_all_issues_are_reported_in_one_run(tmp_path: Path) -> None:
    path = write_catalog(tmp_path, BUILT.replace("[/id]", "[/nope]").replace("name: first", "name: fi/rst"))

    with pytest.raises(CatalogError) as caught:
        load(path)

    assert [each.code for each in caught.value.issues] == ["E303", "E303", "E101"]


def test_catalog_accepts_yaml_1_2_anchors_merge_keys_and_words(tmp_path: Path) -> None:
    text = """
    tests:
      t/one:
        - ingest: &step
            collection: acme/transfers
            documents: &docs
              - {id: 1, who: yes}
        - ingest: {<<: *step, documents: &docs [{id: 2, who: 2024-01-01}]}
        - verify: {collection: acme/transfers, documents: *docs}
    """
    write_catalog(tmp_path, BUILT)
    (tmp_path / "tests.yaml").write_text("import: [flow.yaml]\n" + text.replace("\n    ", "\n"))

    spec = load(tmp_path / "tests.yaml")

    steps = spec.tests["t/one"].steps
    assert [step.documents for step in steps if not isinstance(step, AdvanceStep)] == [
        ({"id": 1, "who": "yes"},),
        ({"id": 2, "who": "2024-01-01"},),
        ({"id": 2, "who": "2024-01-01"},),
    ]


def test_derivations_are_ordered_by_cycle_with_sources_first(tmp_path: Path) -> None:
    def derivation(name: str, source: str) -> str:
        return (
            f"  d/{name}:\n    schema: {{type: object, properties: {{id: {{type: integer}}}}}}\n    key: [/id]\n"
            "    derive:\n      using: {sqlite: {}}\n      transforms:\n"
            f"        - {{name: t, source: {source}, shuffle: any, lambda: SELECT $id}}\n"
        )

    text = (
        BUILT + derivation("z", "d/y") + derivation("x", "d/y") + derivation("y", "d/x") + derivation("self", "d/self")
    )

    spec = load(write_catalog(tmp_path, text))

    assert spec.cycles == (("acme/derived",), ("d/x", "d/y"), ("d/z",), ("d/self",))
    feedback = {name: each.transforms[0].input.feedback for name, each in spec.derivations.items()}
    assert feedback == {"acme/derived": False, "d/x": True, "d/y": True, "d/z": False, "d/self": True}


# An error in a catalog's test stops tests, and nothing that runs.


CATALOG = """
collections:
  a/numbers: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
tests:
  a/test:
    - ingest: {collection: a/numbers, documents: [{id: 1}]}
    - verify: {collection: a/numbers, documents: [{id: 1}]}
"""
WRONG = {
    "a document that is invalid": ("documents: [{id: 1}]", "documents: [{id: one}]"),
    "documents out of order": ("- verify: {collection: a/numbers, documents: [{id: 1}]}", "- verify: {collection: a/numbers, documents: [{id: 2}, {id: 1}]}"),
    "an unknown collection": ("- verify: {collection: a/numbers", "- verify: {collection: a/number"),
    "documents that are no array": ("documents: [{id: 1}]", "documents: {id: 1}"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_of_tests_do_not_stop_a_run(wrong: str, tmp_path: Path) -> None:
    source = write_catalog(tmp_path, CATALOG.replace(*WRONG[wrong], 1))

    with pytest.raises(CatalogError):
        load(source)
    catalog = load_without_tests(source)

    assert list(catalog.collections) == ["a/numbers"]
    assert catalog.tests == {}


def test_other_errors_are_reported_without_errors_of_tests(tmp_path: Path) -> None:
    wrong = "collections:\n  a/wrong: {schema: {type: object, properties: {id: {type: integer}}}, key: [/other]}\n"
    text = CATALOG.replace("documents: [{id: 1}]", "documents: [{id: one}]", 1).replace("collections:\n", wrong, 1)
    source = write_catalog(tmp_path, text)

    with pytest.raises(CatalogError) as all_issues:
        load(source)
    with pytest.raises(CatalogError) as issues:
        load_without_tests(source)

    of_tests = set(all_issues.value.issues) - set(issues.value.issues)
    assert {issue.code for issue in of_tests} == {"E604"}
    assert "/other" in issues.value.issues[0].message


# Before a run: the code that is to run must be right, and no other.


SOUND = """\
collections:
  s/source: &keyed
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
  s/right:
    <<: *keyed
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: s/source, shuffle: any, lambda: SELECT $id;}]
  s/wrong:
    <<: *keyed
    derive:
      using: {sqlite: {}}
      transforms: [{name: copy, source: s/source, shuffle: any, lambda: SELECT $id FROM nowhere;}]
"""


def test_run_checks_only_the_code_of_running_derivations(tmp_path: Path) -> None:
    source = tmp_path / "flow.yaml"
    source.write_text(SOUND)
    catalog = load(source)

    require_sound(catalog, ["s/right"])
    with pytest.raises(CatalogError, match="no such table: nowhere"):
        require_sound(catalog, ["s/wrong"])
    with pytest.raises(CatalogError, match="no such table: nowhere"):
        require_sound(catalog)


# Settings that do nothing here: each is told, with its place, where it asks for something.


WITHOUT_EFFECT = """
collections:
  a/source:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    # collection
  a/derived:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: t, source: a/source, shuffle: any, lambda: SELECT $id}]
      # derive
materializations:
  a/view:
    endpoint: {connector: {image: materialize-sqlite, config: {path: x.db}}}
    bindings:
      - source: a/source
        resource: {table: t}
        # binding
    # materialization
tests:
  a/test:
    description: one
    steps: []
    # test
"""
REMOVE, FLOWCTL_RESET = "leave it out of the catalog to remove it", "'flowctl reset' starts a task over"
TICK = "'maxTxnDuration' is the tick"

SETTINGS = [
    ("collection", "reset: true", "a/source", FLOWCTL_RESET),
    ("collection", "delete: true", "a/source", REMOVE),
    ("collection", "expectPubId: 'ff'", "a/source", None),
    ("collection", "journals: {fragments: {retention: 1d}}", "a/source", "'flowctl compact' deletes history"),
    ("derive", "shards: {minTxnDuration: 5s}", "a/derived", TICK),
    ("derive", "shards: {hotStandbys: 1}", "a/derived", None),
    ("derive", "shards: {ringBufferSize: 1}", "a/derived", None),
    ("derive", "shards: {readChannelSize: 1}", "a/derived", None),
    ("materialization", "shards: {minTxnDuration: 5s}", "a/view", TICK),
    ("materialization", "shards: {hotStandbys: 2}", "a/view", None),
    ("materialization", "reset: true", "a/view", FLOWCTL_RESET),
    ("materialization", "delete: true", "a/view", REMOVE),
    ("materialization", "expectPubId: 'ff'", "a/view", None),
    *(
        (
            place,
            "onIncompatibleSchemaChange: abort",
            "a/view",
            "a task whose schema no longer fits stops and reports the reason",
        )
        for place in ("binding", "materialization")
    ),
    ("test", "delete: true", "a/test", REMOVE),
    ("test", "expectPubId: 'ff'", "a/test", None),
]


def written(tmp_path: Path, place: str, setting: str) -> Path:
    path = tmp_path / "flow.yaml"
    path.write_text(WITHOUT_EFFECT.replace(f"# {place}\n", f"{setting}\n"))
    return path


@pytest.mark.parametrize(("place", "setting", "entity", "hint"), SETTINGS)
def test_a_setting_without_effect_is_reported(
    place: str, setting: str, entity: str, hint: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, place, setting)
    name = setting.removeprefix("shards: {").partition(":")[0]

    built = build(path)

    assert built.issues == ()
    (note,) = built.notes
    assert (note.code, note.message, note.hint) == ("N008", f"'{name}' of '{entity}' has no effect", hint)
    line = path.read_text().split("\n")[note.position.line - 1]
    assert line[note.position.column - 1 :].startswith(f"{name}:")


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("collection", "reset: false"),
        ("derive", "shards: {minTxnDuration: 0s, hotStandbys: 0, ringBufferSize: 65536}"),
        ("materialization", "delete: false"),
        ("collection", "x-anything: {reset: true}"),
    ],
)
def test_setting_that_requests_nothing_is_not_reported(place: str, setting: str, tmp_path: Path) -> None:
    assert build(written(tmp_path, place, setting)).notes == ()


def without_effect(schema: Any) -> set[str]:
    """Return the properties that a schema marks; fail if one is only described so."""
    names = set()
    if isinstance(schema, dict):
        for name, child in schema.get("properties", {}).items():
            is_marked = isinstance(child, dict) and NO_EFFECT in child
            described = "without effect" in child.get("description", "") if isinstance(child, dict) else False
            assert is_marked or not described or name in ("flags", "source", "fragments"), name
            names |= {name} if is_marked else set()
        for child in schema.values():
            names |= without_effect(child)
    for child in schema if isinstance(schema, list) else ():
        names |= without_effect(child)
    return names


def test_settings_without_effect_are_all_documented() -> None:
    tried = {setting.removeprefix("shards: {").partition(":")[0] for _, setting, _, _ in SETTINGS}

    assert without_effect(catalog_schema()) - {"protobuf"} == tried


@pytest.mark.parametrize(
    ("name", "hint"),
    [("macadr", "did you mean 'macaddr'?"), ("password", None), ("datetime", "did you mean 'date-time'?")],
)
def test_a_format_that_is_not_checked_is_reported(name: str, hint: str | None, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        WITHOUT_EFFECT.replace("{id: {type: integer}}", f"{{id: {{type: integer}}, x: {{format: {name}}}}}", 1)
    )

    (note,) = build(path).notes

    assert (note.code, note.message, note.hint) == ("N009", f"values are not checked for the format '{name}'", hint)
    assert note.position.line == 4


def test_checked_formats_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    names = ["integer", "number", "macaddr", "macaddr8", "sha256", "duration", "uuid", "date", "date-time", "ipv4"]
    fields = ", ".join(f"f{index}: {{format: {name}}}" for index, name in enumerate(names))
    path.write_text(WITHOUT_EFFECT.replace("{id: {type: integer}}", f"{{id: {{type: integer}}, {fields}}}", 1))

    assert build(path).notes == ()
