package tidemark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.datatype.jsr310.JavaTimeModule;
import java.net.ConnectException;
import java.net.NoRouteToHostException;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF5;

/**
 * Calls a Kafka Deserializer that a pipeline names, as a function of Spark.
 *
 * Arguments: its class, its configuration as JSON, the name of the message's only column (empty when it has several),
 * the topic, the value. Returns struct<json, error>: what the deserializer returned as a JSON object, or what it threw.
 * Throws ConnectException where the deserializer cannot reach a service.
 * Janino compiles this file (include/spark/compiled_jars.py), which knows no generics.
 */
public final class KafkaDeserializers implements UDF5 {
    private static final int LONGEST_ERROR = 500;

    private static final ObjectMapper JSON = new ObjectMapper()
        .registerModule(new JavaTimeModule())
        .disable(SerializationFeature.WRITE_DATES_AS_TIMESTAMPS)
        .disable(SerializationFeature.FAIL_ON_EMPTY_BEANS);

    // One for each thread: a Deserializer need not be thread-safe.
    private static final ThreadLocal HELD = new ThreadLocal();

    public Object call(Object name, Object config, Object only, Object topic, Object value) throws Exception {
        if (value == null) {
            return row(null, null);
        }
        // Outside of the try: a deserializer that cannot be made is not the fault of a record.
        Deserializer deserializer = held((String) name, (String) config);
        try {
            Object message = deserializer.deserialize((String) topic, (byte[]) value);
            return row(message == null ? null : json(message, (String) only), null);
        } catch (Exception thrown) {
            if (isUnreachable(thrown)) {
                throw new ConnectException("the deserializer " + name + " cannot connect: " + oneLine(thrown));
            }
            return row(null, oneLine(thrown));
        } catch (StackOverflowError thrown) {
            return row(null, oneLine(thrown));
        } catch (OutOfMemoryError thrown) {
            // Mostly of a value that says that it is longer than the memory: nothing was allocated then.
            if (isOfNoValue(thrown)) {
                throw thrown;
            }
            return row(null, oneLine(thrown));
        }
    }

    /** Whether classes or threads lack memory, which no value asks for: all later records would fail alike. */
    private static boolean isOfNoValue(OutOfMemoryError thrown) {
        String text = String.valueOf(thrown.getMessage());
        return text.startsWith("Metaspace") || text.startsWith("Compressed class space")
            || text.startsWith("unable to create");
    }

    /** Whether it was thrown since a service, such as a registry, does not answer: that is no record's fault. */
    private static boolean isUnreachable(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof ConnectException || cause instanceof NoRouteToHostException
                || cause instanceof SocketTimeoutException || cause instanceof UnknownHostException) {
                return true;
            }
        }
        return false;
    }

    private static Row row(String json, String error) {
        return RowFactory.create(new Object[] {json, error});
    }

    /** What is wrong with the class or its configuration; null when it can be used. */
    public String problem(String name, String config) {
        try {
            held(name, config);
            return null;
        } catch (ClassNotFoundException thrown) {
            return "the jar has no such class";
        } catch (ClassCastException thrown) {
            return "it is not an org.apache.kafka.common.serialization.Deserializer";
        } catch (Exception thrown) {
            return oneLine(thrown);
        } catch (LinkageError thrown) {
            return oneLine(thrown);
        }
    }

    private static Deserializer held(String name, String config) throws Exception {
        Map mine = (Map) HELD.get();
        if (mine == null) {
            mine = new HashMap();
            HELD.set(mine);
        }
        Deserializer found = (Deserializer) mine.get(name + config);
        if (found == null) {
            ClassLoader loader = Thread.currentThread().getContextClassLoader();
            Class named = Class.forName(name, true, loader);
            found = (Deserializer) named.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
            found.configure((Map) JSON.readValue(config, Map.class), false);
            mine.put(name + config, found);
        }
        return found;
    }

    private static String json(Object message, String only) throws Exception {
        JsonNode tree = JSON.valueToTree(message);
        if (tree.isObject()) {
            return JSON.writeValueAsString(tree);
        }
        if (only.isEmpty()) {
            throw new IllegalArgumentException(
                "it returned one " + message.getClass().getName() + ", and the schema has several columns");
        }
        ObjectNode object = JSON.createObjectNode();
        object.set(only, tree);
        return JSON.writeValueAsString(object);
    }

    private static String oneLine(Throwable thrown) {
        String text = thrown.getClass().getName() + ": " + thrown.getMessage();
        String line = text.replaceAll("[\\p{C}\\s]+", " ").trim();
        return line.length() > LONGEST_ERROR ? line.substring(0, LONGEST_ERROR) : line;
    }
}
